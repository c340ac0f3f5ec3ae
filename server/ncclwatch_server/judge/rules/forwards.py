"""Which module's forward makes the collective that only some ranks make, and in what mode does each side run it?

A module that communicates in its forward has to be run by all ranks, in one mode. no_grad and eval() do no harm by
themselves: that one side has them and the other has not is what hangs. What is told here explains a verdict and never
makes one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import GradMode, ModuleView, OpView, RankView
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.theory.histories.odd_side import Parting, Side

_GRAD_WORDS = {
    GradMode.GRAD: "with gradients",
    GradMode.NO_GRAD: "under no_grad",
    GradMode.INFERENCE: "under inference_mode",
}
_CAUSES = (Cause.RANK_CONDITIONAL_COLLECTIVE, Cause.DIVERGENT_CONTROL_FLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """A collective in a forward that one side makes and the other does not."""

    callers: tuple[int, ...]
    others: tuple[int, ...]
    module: ModuleView
    others_before: ModuleView | None = None  # how the others ran that line before, if in another mode each time
    others_now: ModuleView | None = None  # the module on the others, if its mode is another one now

    def explains(self, found: Parting) -> bool:
        """Say whether it is the forward, rather than some decision before it, that has to be mended."""
        one_mode = self.others_before is None and self.others_now is None
        return not one_mode or found.cause is Cause.RANK_CONDITIONAL_COLLECTIVE


def one_sided_forward(views: Mapping[int, RankView], found: Parting) -> OneSided | None:
    """Return the forward that one side of a parting is in, None if none is, or if something else parted them."""
    a_loop = found.cause is Cause.UNEVEN_BATCHES and not found.counts  # by the source alone: it may be in the forward
    if not (found.cause in _CAUSES or a_loop) or found.slip is not None or found.handled is not None or found.threads:
        return None
    for callers, op in _callers(found):
        module = module_of(views[callers.ranks[0]], op)
        others = tuple(side for side in (found.culprit, *found.others) if side is not callers)
        if module is None:
            continue
        ranks = tuple(sorted(rank for side in others for rank in side.ranks))
        now = _now(views, ranks, module)
        if a_loop and now is None:
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
        made_by = found.culprit if shift.skipped < 0 else max(found.others, key=lambda side: len(side.ranks))
        yield made_by, shift.op
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


def words(found: OneSided) -> str:
    """Return what is known of the forward, in a sentence or two."""
    both = f"The call is made in the forward of {_name(found.module)}, {_mode_words(found.module)}"
    others = ranks_words(found.others)
    if found.others_now is not None:
        return f"{both}; on {others} that module is in {_training_words(found.others_now)} mode."
    if found.others_before is not None:
        return f"{both}; {others} made it {_mode_words(found.others_before)} each time before."
    return f"{both}."


def remedies(found: OneSided) -> str:
    """Return both ways to mend it."""
    name = _path(found.module)
    if found.others_now is not None:
        return (
            f"Bring {name} into one mode on all ranks before the next forward (a .eval() needs its .train() again); or "
            "let its collective depend on nothing that a rank decides alone, such as self.training."
        )
    return (
        f"Either run that forward on all ranks, or on none; or keep {name} from communicating in it: {name}.eval() "
        "before and .train() after, if it communicates in train() mode only, or ask for self.training and "
        "torch.is_grad_enabled() in its forward. no_grad alone is no mistake: that one side does it is."
    )


def _path(module: ModuleView) -> str:
    return f"{module.root}.{module.path}" if module.path else module.root


def _name(module: ModuleView) -> str:
    path = _path(module)
    return path if path == module.kind else f"{path} ({module.kind})"


def _training_words(module: ModuleView) -> str:
    return "train()" if module.training else "eval()"


def _mode_words(module: ModuleView) -> str:
    grad = _GRAD_WORDS.get(module.grad)
    return f"in {_training_words(module)} mode{f' and {grad}' if grad else ''}"
