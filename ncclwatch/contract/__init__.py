"""What the rank, the agent and the server agree on: nouns, bytes, limits and words."""
