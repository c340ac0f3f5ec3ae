"""Torchruns whose ranks are forked from one process that has imported torch, where CPU is short."""
