"""Speed, always as a ratio to something else in the same run: ``make bench``."""
