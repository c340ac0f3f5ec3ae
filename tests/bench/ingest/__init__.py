"""What does a digest cost the server? Against a POST to FastAPI with pydantic, and against a floor in C."""
