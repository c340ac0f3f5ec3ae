"""A soak: thousands of small real jobs on one server and one agent, and whether anything of theirs grows."""
