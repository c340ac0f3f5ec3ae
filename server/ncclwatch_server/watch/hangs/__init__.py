"""What is done about hangs, and what becomes of them: agents that act, captures, attempts that follow."""
