"""Samplers: what moves the particles."""
