"""What one machine gives: directories of a user, limits, and whether loops live."""
