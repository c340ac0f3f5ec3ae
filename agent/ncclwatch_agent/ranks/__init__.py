"""Says what the ranks of this node are and how they stand, by their rings."""
