"""Tells what keeps a slow rank from its work."""
