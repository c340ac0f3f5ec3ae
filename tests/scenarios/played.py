"""Makes a program for torchrun out of a situation: what each rank has done, what it waits in, how it ended."""

import json

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Op, OpView, ProcessState, RankView

_CALLS = {Op.ALL_REDUCE: "dist.all_reduce(torch.ones(numel), group=group)", Op.BARRIER: "dist.barrier(group=group)"}
_HEAD = '''"""A scenario, played by real ranks."""

import os
import signal
import time

import torch
import torch.distributed as dist

import ncclwatch
'''
_MAIN = """

def play(steps, groups):
    for call, group, numel in steps:
        globals()[call](groups[group], numel)


def main():
    ncclwatch.attach()
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(members) for name, members in GROUPS.items()}
    dist.barrier()
    rank = str(dist.get_rank())
    play(STEPS[rank], groups)
    end = ENDS[rank]
    if end == "raise":
        raise ValueError("bad label")
    if end == "exit":
        os._exit(0)
    if end == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


main()
"""


def program(snapshot: JobSnapshot) -> str:
    """Return the text of a program whose ranks come to stand as they do in a situation."""
    functions = sorted({(_name(op), _CALLS[op.op]) for view in snapshot.ranks.values() for op in view.history})
    groups = {group.name: group.ranks for view in snapshot.ranks.values() for group in view.groups}
    steps = {str(view.rank): [(_name(op), op.group, op.numel) for op in view.history] for view in _views(snapshot)}
    ends = {str(view.rank): _end(view) for view in _views(snapshot)}
    return "".join((
        _HEAD,
        *(f"\n\ndef {name}(group, numel):\n    {call}\n" for name, call in functions),
        f"\n\nGROUPS = {json.dumps(groups)}\nSTEPS = {json.dumps(steps)}\nENDS = {json.dumps(ends)}\n",
        _MAIN,
    ))  # fmt: skip


def _views(snapshot: JobSnapshot) -> list[RankView]:
    return [snapshot.ranks[rank] for rank in sorted(snapshot.ranks)]


def _name(op: OpView) -> str:
    assert op.site is not None
    return f"{op.site.function}_{op.site.line}_{op.op.value}"


def _end(view: RankView) -> str:
    if view.ending is not None:
        return "exit" if view.ending.kind == "exited" else "raise"
    return "stop" if view.process.state is ProcessState.STOPPED else "stand"
