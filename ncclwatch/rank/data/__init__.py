"""Sees which data a rank draws, and how it is split."""
