"""Measures what each hook takes in a training step: how often it is called x what one call takes, in its place.

While ncclwatch attaches, two functions are laid round each hook: one outside, one between the hook and what it
replaced. What the outer one measures less what the inner one does is the hook's own, with caches as the step has left
them. Both have the name of a file of torch's, so that the hook finds the user's line where it does without them.

Kernels cannot be seen so: their count is that of the operations in the ring, their cost that of one between other
work (recorder.py). The pulse beats by the clock, and has one of its own. The sum of the others should lie in the
interval of what the step takes more.
"""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from tests.bench.intervals import trimmed
from tests.bench.row import Row

STEPS = 30
_IDLE = "idle"

Function = Callable[..., Any]


class Watch:
    """Adds up what hooks take, by their names."""

    def __init__(self) -> None:
        self.own_ns: dict[str, list[int]] = defaultdict(list)
        self._inside = threading.local()

    def hooked(self, name: str, make: Callable[[Function], Function]) -> Callable[[Function], Function]:
        """Return a `make` whose hook is watched."""

        def made(original: Function) -> Function:
            return self._outer(name, make(self._inner(original)))

        return made

    def _frames(self) -> list[int]:
        if not hasattr(self._inside, "frames"):
            self._inside.frames = []
        frames: list[int] = self._inside.frames
        return frames

    def _outer(self, name: str, hook: Function) -> Function:
        frames_of, own, clock = self._frames, self.own_ns[name], time.thread_time_ns

        def outer(*args: Any, **kwargs: Any) -> Any:
            frames = frames_of()
            frames.append(0)
            began = clock()
            try:
                return hook(*args, **kwargs)
            finally:
                ended = clock()
                own.append(ended - began - frames.pop())

        return _as_torch(functools.wraps(hook)(outer) if hasattr(hook, "__name__") else outer)

    def _inner(self, original: Function) -> Function:
        frames_of, clock = self._frames, time.thread_time_ns

        def inner(*args: Any, **kwargs: Any) -> Any:
            frames = frames_of()
            began = clock()
            try:
                return original(*args, **kwargs)
            finally:
                if frames:
                    frames[-1] += clock() - began

        return _as_torch(functools.wraps(original)(inner) if hasattr(original, "__name__") else inner)

    def idle(self) -> Function:
        """Return a hook that does nothing: what it seems to take, each seems to take beside its own."""
        return self.hooked(_IDLE, lambda original: original)(lambda *_: None)

    def cost_us(self) -> dict[str, tuple[int, float]]:
        """Return how often each hook was called, and what one call took of its own."""
        idle = trimmed(self.own_ns[_IDLE])
        return {
            name: (len(own), max(0.0, trimmed(own) - idle) / 1000)
            for name, own in self.own_ns.items()
            if own and name != _IDLE
        }


def _as_torch(function: Any) -> Any:
    """Return it with code that seems to lie in a file of torch's: no line of the user's."""
    import torch

    code: CodeType = function.__code__
    same = FunctionType(
        code.replace(co_filename=torch.__file__), function.__globals__, function.__name__, None, function.__closure__
    )
    return functools.update_wrapper(same, function)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch each hook that is laid within."""
    from ncclwatch.rank.patches import training
    from ncclwatch.rank.patches.patching import Patches

    watch = Watch()
    replace, everywhere, register = (
        Patches.replace,
        Patches.replace_everywhere,
        training.register_optimizer_step_post_hook,
    )

    def replace_watched(self: Patches, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        replace(self, owner, name, watch.hooked(f"{owner.__name__.removeprefix('torch.')}.{name}", make))

    def everywhere_watched(self: Patches, owners: Any, name: str, make: Callable[[Function], Function]) -> None:
        everywhere(self, owners, name, watch.hooked(name, make))

    Patches.replace, Patches.replace_everywhere = replace_watched, everywhere_watched  # type: ignore[method-assign]
    training.register_optimizer_step_post_hook = lambda hook: register(watch._outer("optimizer's hook", hook))
    try:
        yield watch
    finally:
        Patches.replace, Patches.replace_everywhere = replace, everywhere  # type: ignore[method-assign]
        training.register_optimizer_step_post_hook = register


def pulse_clock() -> int | None:
    """Return the clock of the pulse's CPU time, None while there is no pulse."""
    from ncclwatch.rank import attach

    ident = attach._pulse._thread.ident if attach._pulse is not None else None
    return time.pthread_getcpuclockid(ident) if ident is not None else None


def measure(training: Any, native: bool, fresh: Callable[[Any], None]) -> dict[str, Any]:
    """Return how often a step calls each hook and what one call takes, and how many operations it issues."""
    import ncclwatch
    from ncclwatch.contract.ring.layout import Word
    from ncclwatch.rank import attach

    fresh(training.model)
    with watched() as watch:
        ncclwatch.attach(native=native)
        layers = [module for module in training.model.modules() if not list(module.children())]
        idle = [layer.register_forward_pre_hook(watch.idle()) for layer in layers]
        for _ in range(3):
            training.step()
        for own in watch.own_ns.values():
            own.clear()
        recorder = attach.current()
        clock = pulse_clock()
        assert recorder is not None and clock is not None
        before = recorder.ring.word(Word.EVENTS_HEAD)
        pulse_ns, began_ns = time.clock_gettime_ns(clock), time.monotonic_ns()
        for _ in range(STEPS):
            training.step()
        beats = (time.clock_gettime_ns(clock) - pulse_ns) / (time.monotonic_ns() - began_ns)
        issued = recorder.ring.word(Word.EVENTS_HEAD) - before
        ncclwatch.detach()
        for handle in idle:
            handle.remove()
    hooks = {name: (count / STEPS, cost) for name, (count, cost) in watch.cost_us().items()}
    return {"operations": issued / STEPS, "pulse": beats, "hooks": hooks}


def rows(what: str, seen: Any, found: dict[str, Any], cold_us: float) -> list[Row]:
    """Return the table of one recorder in one job: hook x how often x cost, its sum, and what was measured."""
    bare_us = seen.bare.thread_us
    parts = [(f"{name}, {often:.3g} x {cost:.3g} µs", often * cost) for name, (often, cost) in found["hooks"].items()]
    parts.append((f"operations, {found['operations']:.3g} x {cold_us:.3g} µs", found["operations"] * cold_us))
    parts.sort(key=lambda part: -part[1])
    rows = [_share(f"{what}: {name}", cost, bare_us) for name, cost in parts]
    total = sum(cost for _, cost in parts)
    rows.append(_share(f"{what}: sum of these", total, bare_us))
    measured = seen.added_us
    rows.append(
        Row(
            what=f"{what}: measured in the training thread {measured}", unit="µs", ours=measured.middle,
            peer="the sum", theirs=total, budget="the sum lies within", met=measured.has(total),
        )
    )  # fmt: skip
    rows.append(Row(what=f"{what}: the pulse's own thread, of a core", unit="%", ours=found["pulse"] * 100))
    return rows


def _share(what: str, cost_us: float, of_us: float) -> Row:
    return Row(what=what, unit="µs", ours=cost_us, peer=f"= {cost_us / of_us:.3%} of", theirs=of_us)
