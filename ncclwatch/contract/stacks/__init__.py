"""Stacks of threads: whose code, which place, and merged as a tree."""
