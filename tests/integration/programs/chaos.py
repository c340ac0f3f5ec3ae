"""Ranks of gloo train; a page of memory says when rank 1 goes to a barrier, waits for a lock, or all end."""

import fcntl
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ncclwatch
from tests.chaos.board import Board, Gaps, Wish, Word

BOARD = Path(os.environ["CHAOS_BOARD"])
CULPRIT = 1


def say(board: Board, rank: int) -> None:
    """Say that this process runs, and how long it did not."""
    gaps = Gaps(board, rank)
    while True:
        time.sleep(0.05)
        gaps.say()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    board, rank, step = Board(BOARD), dist.get_rank(), 0
    board.set(rank, Word.PID, os.getpid())
    threading.Thread(target=say, args=(board, rank), daemon=True).start()
    ended = torch.zeros(1)
    while not ended.item():
        step += 1
        if board.wish is Wish.STALL and rank == CULPRIT:
            with BOARD.with_name("gate").open("a") as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
        board.set(rank, Word.OP, int(board.wish is Wish.PART and rank == CULPRIT))
        board.set(rank, Word.SEQ, step)
        board.set(rank, Word.WAITS, 1)
        if board.get(rank, Word.OP):
            dist.barrier()
        ended.fill_(board.wish is Wish.END)
        dist.all_reduce(ended)
        board.set(rank, Word.WAITS, 0)
        board.set(rank, Word.STEPS, step)
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
