"""Transport maps: from N(0, I) to the target, with their exact densities."""
