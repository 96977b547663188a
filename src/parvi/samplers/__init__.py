"""WHO moves the particles."""
