"""The command line."""

from parvi.cli.main import app as app
