"""Measures what a digest costs the server, against a POST to FastAPI with pydantic, and against a floor in C."""
