"""Tells what several causes have in common: what is so at a mismatch, in a circle, of ranks that stand still or end."""
