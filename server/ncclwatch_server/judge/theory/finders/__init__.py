"""Finds the roots in which waits end: one module for each way of looking."""
