"""What the ranks of a simulated job do, step by step, and what goes wrong with one of them."""
