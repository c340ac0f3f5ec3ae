"""Turns verdicts into incidents: when one opens, changes and ends, and how it is told."""
