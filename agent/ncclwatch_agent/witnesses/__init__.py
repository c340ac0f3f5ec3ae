"""Asks second witnesses: torch's Flight Recorder and NCCL's RAS."""
