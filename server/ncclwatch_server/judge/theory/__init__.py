"""Finds what is so in a job: who stands where, who waits for whom, where histories part. Knows no cause."""
