"""Ranks that are gone: what each end says by itself, and which of them caused the others."""
