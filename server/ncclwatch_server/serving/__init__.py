"""Serves the application: uvicorn, and what its connections may cost."""
