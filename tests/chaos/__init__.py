"""Faults put into ourselves, at each step of an incident's life, on real processes."""
