"""The words for people, and how ranks and hosts are written."""
