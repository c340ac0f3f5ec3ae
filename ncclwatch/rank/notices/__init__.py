"""Notices of hangs from the agent of this node, for ranks whose owner has asked for them."""
