"""Simulation-based calibration: whether posteriors of simulated data are right on average."""
