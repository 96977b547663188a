"""The results of a run, and how good they are."""
