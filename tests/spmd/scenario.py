"""Writes a counterexample as a scenario: the program in comments, what each rank does at the moment as commands."""

from collections.abc import Iterator

from ncclwatch.contract.model.rank import OpView, ProcessState, RankView, WaitKind
from tests.scenarios.texts import render
from tests.spmd import views
from tests.spmd.check import Counterexample, carried_out
from tests.spmd.program import source_of


def text_of(found: Counterexample) -> str:
    """Return a scenario, with what the judge says of it."""
    trial, run = found.trial, carried_out(found.trial)
    ranks = views.snapshot(run, found.sight).ranks
    fault = trial.fault
    lines = [
        f"# {found.broken.value}",
        *(f"# {line}" for line in source_of(trial.program).splitlines()),
        f"# {fault.what.value} by {list(fault.ranks)} at line {fault.line}, turn {fault.turn}",
        *(f"# rank {rank} takes {s:.0f} s at line {line}, turn {turn}" for rank, line, turn, s in trial.slow),
        f"world {trial.program.world}",
        *(f"group {name} {_list(members)}" for name, members in trial.program.groups.items()),
    ]  # fmt: skip
    for view in ranks.values():
        lines += _commands(view)
    used = {(view.rank, group.name) for view in ranks.values() for group in view.groups}
    for name, members in trial.program.groups.items():
        unused = [rank for rank in members if rank in ranks and (rank, name) not in used]
        lines += [f"unused {_list(unused)} {name}"] if unused else []
    lines += [f"unasked {_list(found.sight.unasked)}"] if found.sight.unasked else []
    lines += [f"silent {_list(found.sight.silent)} for 5"] if found.sight.silent else []
    said = render((found.verdict,)) if found.verdict is not None else "nothing\n"
    return "\n".join(lines) + f"\n----\n{said}"


def _list(ranks: "tuple[int, ...] | list[int]") -> str:
    return ",".join(map(str, ranks))


def _commands(view: RankView) -> Iterator[str]:
    """Yield what one rank has done, and where it stands."""
    rank, thread = view.rank, view.threads[0]
    for loader in view.loaders:
        ended = f" exhausted last {loader.last_drawn}" if loader.exhausted else ""
        yield f"loader {rank} train.py:{loader.site.line} pass {loader.passes} drawn {loader.drawn}{ended}"
    wait = thread.wait if thread.wait is not None and thread.wait.kind is WaitKind.COLLECTIVE else None
    for op in view.history:
        if wait is not None and (op.group, op.seq) == (wait.group, wait.seq):
            yield f"in {rank} {_call(op)} for {wait.age_s:.1f}{_signature(op)}"
        else:
            batch = f" batch {op.batch}" if op.loader else ""
            yield f"history {rank} {op.group}#{op.seq}-{op.seq} {op.op.value} train.py:{_line(op)}{batch}"
    if view.ending is not None:
        how = {"exited": "exit 0", "crashed": 'error "ValueError: bad label"'}.get(view.ending.kind, "signal 9")
        yield f"ended {rank} {how} ago {view.ending.age_s:.1f}"
    elif wait is None and thread.doing is not None:
        still = f" still {thread.same_s:.1f}" if thread.same_s else ""
        yield f"at {rank} train.py:{thread.doing.line}{still}"
        if view.process.state is ProcessState.STOPPED:
            yield f"stopped {rank} for {view.pulse_age_s:.1f}"


def _call(op: OpView) -> str:
    return f"{op.group}#{op.seq} {op.op.value} train.py:{_line(op)}"


def _signature(op: OpView) -> str:
    root = f" root={op.peer}" if op.peer >= 0 else ""
    return f"{root} numel={op.numel} reduce={op.reduce_op}" if op.numel else root


def _line(op: OpView) -> int:
    return op.site.line if op.site is not None else 0
