"""The nouns of ncclwatch, as values: a rank, a job, a verdict."""
