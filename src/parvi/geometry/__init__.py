"""The shape of a cloud: its frames and its clumps."""
