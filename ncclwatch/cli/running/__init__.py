"""What `ncclwatch run` does around a training: its server, its environment, its verdicts."""
