"""Asks a server over HTTP, and reads its answers."""
