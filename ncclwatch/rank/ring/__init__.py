"""The ring of this rank: its file in memory, and what is written there without ever waiting."""
