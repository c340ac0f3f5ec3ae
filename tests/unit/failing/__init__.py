"""One thing after the other fails below ncclwatch."""
