"""Notes how a rank was set up and what it has found out about itself."""
