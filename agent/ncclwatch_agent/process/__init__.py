"""Says what the kernel tells of processes, terminals and this node."""
