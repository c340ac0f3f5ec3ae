"""Says what becomes of checkpoints: which file, how far, and whether there is room."""
