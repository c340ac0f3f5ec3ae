"""Tests of who waits in what, and for whom."""
