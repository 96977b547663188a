"""Experiments: what the command line runs."""
