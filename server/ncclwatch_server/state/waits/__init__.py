"""Follows the waits of a job: where they lead, how long those of each kind last, and what is learned from them."""
