"""Says what encloses a line of the user's source."""
