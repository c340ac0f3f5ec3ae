"""The ring: its bytes, its strings, and what its rows mean."""
