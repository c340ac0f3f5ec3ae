"""Builds what the package brings of the native recorder."""
