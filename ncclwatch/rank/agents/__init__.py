"""What a rank does so that an agent watches it, and that agents find each other."""
