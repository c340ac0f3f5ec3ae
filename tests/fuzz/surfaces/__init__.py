"""What others send, one module for each way in."""
