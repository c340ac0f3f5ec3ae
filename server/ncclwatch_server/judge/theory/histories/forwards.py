"""Finds the forward of a module that makes a collective which only some ranks make, and the mode of each side in it.

A module that communicates in its forward has to be run by all ranks, in one mode. no_grad and eval() do no harm by
themselves: that one side has them and the other has not is what hangs. What is told here explains a verdict and never
makes one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import GradMode, ModuleView, OpView, RankView
from ncclwatch_server.judge.theory.histories.odd_side import Side
from ncclwatch_server.judge.theory.histories.parting import Parting, Way

# Where something else has parted the sides, no forward of theirs has.
_WAYS = frozenset(
    (
        Way.SHIFT, Way.TEST_OF_RANK, Way.FUNCTION_LEFT, Way.BACKWARD_LEFT, Way.LOOP_ENDED, Way.LOOP_LEFT, Way.UNKNOWN,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """A collective in a forward that one side makes and the other does not."""

    callers: tuple[int, ...]
    others: tuple[int, ...]
    module: ModuleView
    others_before: ModuleView | None = None  # how the others ran that line before, if in another mode each time
    others_now: ModuleView | None = None  # the module on the others, if its mode is another one now

    @property
    def one_mode(self) -> bool:
        """Whether nothing is known to be different in the way that both sides run it."""
        return self.others_before is None and self.others_now is None


def one_sided_forward(views: Mapping[int, RankView], found: Parting) -> OneSided | None:
    """Return the forward that one side of a parting is in, None if none is, or if something else parted them."""
    if found.way not in _WAYS:
        return None
    for callers, op in _callers(found):
        module = module_of(views[callers.ranks[0]], op)
        others = tuple(side for side in (found.culprit, *found.others) if side is not callers)
        if module is None:
            continue
        ranks = tuple(sorted(rank for side in others for rank in side.ranks))
        now = _now(views, ranks, module)
        if found.way is Way.LOOP_ENDED and now is None:  # known by the source alone; it may lie in the forward
            return None
        return OneSided(
            callers=callers.ranks,
            others=ranks,
            module=module,
            others_before=_before(views, ranks, op, module),
            others_now=now,
        )
    return None


def _callers(found: Parting) -> Iterable[tuple[Side, OpView]]:
    """Yield who may have made a call that the others did not make, with that call."""
    shift = found.shift
    if shift is not None:
        made_by = found.culprit if shift.skipped < 0 else found.largest_other
        yield made_by, shift.op
        return
    if found.way is Way.TEST_OF_RANK:  # the call under the test is one-sided, and the other is what is due
        side = found.largest_other if found.condition_on_others else found.culprit
        yield side, side.op
        return
    yield found.culprit, found.culprit.op
    yield from ((side, side.op) for side in found.others)


def module_of(view: RankView, op: OpView) -> ModuleView | None:
    """Return the module in whose forward a rank made an operation: as seen in it now, else as first recorded there."""
    recorded = view.modules[op.module - 1] if 0 < op.module <= len(view.modules) else None
    for thread in view.threads:
        wait = thread.wait
        if wait is not None and (wait.group, wait.seq, wait.op) == (op.group, op.seq, op.op) and thread.module:
            return replace(thread.module, grad=recorded.grad) if recorded is not None else thread.module
    return recorded


def _before(views: Mapping[int, RankView], ranks: Iterable[int], op: OpView, module: ModuleView) -> ModuleView | None:
    """Return how ranks made a call before, if always in another gradient mode than `module` is in.

    That mode is known of each operation; train() or eval() only of the first on each way.
    """
    met = [
        views[rank].modules[each.module - 1]
        for rank in ranks
        for each in views[rank].history
        if each.site == op.site and 0 < each.module <= len(views[rank].modules)
    ]
    modes = {each.grad for each in met}
    if GradMode.UNKNOWN in (module.grad, *modes) or len(modes) != 1 or module.grad in modes:
        return None
    return met[0]


def _now(views: Mapping[int, RankView], ranks: Iterable[int], module: ModuleView) -> ModuleView | None:
    """Return that module on ranks that stand elsewhere, if it is in the other of train() and eval() on all of them."""
    found: list[ModuleView] = []
    for rank in ranks:
        same = [each for each in views[rank].modes if each.kind == module.kind and _matches(each.path, module.path)]
        if not same or any(each.training == module.training for each in same):
            return None
        found += same
    return found[0] if found else None


def _matches(path: str, pattern: str) -> bool:
    """Say whether a path is the one that was recorded; a model may be entered at a module of its own."""
    parts, wanted = path.split("."), pattern.split(".")
    if pattern in ("", "*"):
        return True
    shorter = min(len(parts), len(wanted))
    return all(a == b or (b == "*" and a.isdigit()) for a, b in zip(parts[-shorter:], wanted[-shorter:], strict=True))
