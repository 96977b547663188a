"""Models: log densities ready to be sampled."""
