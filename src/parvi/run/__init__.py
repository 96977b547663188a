"""The compiled loop and what happens between its chunks."""
