"""Keeps ranks together whose data or devices differ: even batches, random states."""
