"""What is known of a cloud's shape."""
