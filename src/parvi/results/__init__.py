"""What comes out of a run, and how good it is."""
