"""Asks nodes for more: full views, stacks and testimonies, and keeps what they answer."""
