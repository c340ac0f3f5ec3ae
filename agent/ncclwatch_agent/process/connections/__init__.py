"""The TCP connections of processes: where they lead, and what is moved through them."""
