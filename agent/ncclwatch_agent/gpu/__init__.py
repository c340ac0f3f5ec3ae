"""Says which GPUs this node has, and whose they are."""
