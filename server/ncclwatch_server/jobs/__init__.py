"""Keeps the jobs that this server knows, who speaks for their ranks, and what readers see of them."""
