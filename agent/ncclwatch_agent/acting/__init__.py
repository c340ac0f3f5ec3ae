"""Acts on the hangs of a job whose owner has asked for it, on this node."""
