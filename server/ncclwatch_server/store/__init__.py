"""Keeps incidents and lessons beyond the life of the server, in SQLite or PostgreSQL."""
