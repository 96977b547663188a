"""HOW particles and scores become a velocity."""
