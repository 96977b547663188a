"""The experiments that the command line runs."""
