"""Draws faults for one training program, and says what is then true. Cases without end, each from a number.

The program (``programs/injected.py``) holds the mistakes as a user makes them: it skips a batch whose loss
is not finite, reports a spike before its backward, counts classes without minlength. A case only decides what
meets it: which data, host or disk, on which rank, at which step, while it is doing what.
"""

import dataclasses
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from .truth import PROGRAMS, Expect, Marker, Side, Truth

PROGRAM = PROGRAMS / "injected.py"
FIRST_STEP = 15  # the steps before are healthy
_PLACES = ("training", "validation", "saving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The training that a fault is put into."""

    nproc: int
    sharded: bool
    width: int
    depth: int
    batch: int
    workers: int
    steps: int
    report_every: int
    reporter: int
    epochs: int = 3

    @property
    def last_step(self) -> int:
        return self.epochs * self.steps - self.report_every


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault: what the program's configuration calls it, when it can strike, and what is then true."""

    kind: str
    event: str
    title: str
    strikes: Callable[[random.Random, Shape], tuple[int, int, str]]  # rank, step, while doing what
    expect: Expect = Expect.HANG
    cause: tuple[str, ...] = ()
    certainty: tuple[str, ...] = ()
    advice_any: tuple[str, ...] = ()
    call_site: tuple[Marker, ...] = ()


def _at_any_step(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    return chance.randrange(shape.nproc), chance.randrange(FIRST_STEP, shape.last_step), "training"


def _anywhere(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    rank, step, _ = _at_any_step(chance, shape)
    place = chance.choice(_PLACES)
    return rank, step if place == "training" else _end_of_epoch(chance, shape), place


def _at_a_report(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    step = chance.randrange(-(-FIRST_STEP // shape.report_every), shape.last_step // shape.report_every)
    return chance.randrange(shape.nproc), step * shape.report_every, "training"


def _between_reports(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    rank, step, place = _at_any_step(chance, shape)
    return rank, step + 1 if step % shape.report_every == 0 else step, place


def _at_the_reporter(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    return shape.reporter, *_at_a_report(chance, shape)[1:]


def _when_saving(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    return 0, _end_of_epoch(chance, shape), "training"


def _when_choosing(chance: random.Random, shape: Shape) -> tuple[int, int, str]:
    return chance.randrange(1, shape.nproc), chance.randrange(2, shape.epochs + 1) * shape.steps, "training"


def _end_of_epoch(chance: random.Random, shape: Shape) -> int:
    return chance.randrange(1, shape.epochs + 1) * shape.steps


def _lines(function: str, *codes: str) -> tuple[Marker, ...]:
    return tuple(Marker(function=function, code=code) for code in codes)


_SAME_DECISION = ("same decision", "all ranks", "every rank")

FAULTS = (
    Fault(
        kind="skip",
        event="broken",
        title="skips the backward of a batch whose loss is not finite",
        strikes=_at_any_step,
        cause=("divergent_control_flow",),
        certainty=("PROVEN",),
        advice_any=_SAME_DECISION,
        call_site=(
            *_lines("Training.train_step", "if not torch.isfinite(loss)", "self.skipped += 1", "            return"),
            *_lines("Training.train_step", "loss = F.mse_loss(self.model(inputs)", "loss.backward()"),
            *_lines("Telemetry.report_loss", "dist.all_gather("),
            *_lines("Training.validate", "loss = F.mse_loss(self.model(inputs)", "dist.all_reduce(loss)"),
        ),
    ),
    Fault(
        kind="swap",
        event="spike",
        title="reports a spike of the loss before its backward, the others after it",
        strikes=_at_a_report,
        cause=("collective_order",),
        certainty=("PROVEN",),
        advice_any=("same order",),
        call_site=(
            *_lines("Telemetry.report_loss", "dist.all_gather("),
            *_lines("Training.train_step", "                self.telemetry.report_loss(loss)", "if loss > SPIKE"),
        ),
    ),
    Fault(
        kind="extra",
        event="spike",
        title="tells the others of a spike in a broadcast that they do not join",
        strikes=_between_reports,
        cause=("rank_conditional_collective", "divergent_control_flow"),
        certainty=("PROVEN",),
        advice_any=_SAME_DECISION,
        call_site=(
            *_lines("Training.warn", "dist.broadcast("),
            *_lines("Training.train_step", "self.warn(loss)", "if loss > SPIKE"),
        ),
    ),
    Fault(
        kind="shape",
        event="rare",
        title="reduces fewer numbers than the others, for want of the last class",
        strikes=_at_a_report,
        expect=Expect.CRASH,
        cause=("signature_mismatch",),
        certainty=("PROVEN",),
        advice_any=("same shape", "pad"),
        call_site=_lines("Telemetry.count_kinds", "dist.all_reduce(counts", "counts = torch.bincount("),
    ),
    Fault(
        kind="root",
        event="roster",
        title="broadcasts from itself, the others from rank 0",
        strikes=_when_choosing,
        cause=("signature_mismatch",),
        certainty=("PROVEN",),
        advice_any=("root", "src"),
        call_site=_lines("Training.choose_leader", "dist.broadcast(order", "self.leader = self.rank"),
    ),
    Fault(
        kind="kill",
        event="memory",
        title="is killed by SIGKILL",
        strikes=_anywhere,
        expect=Expect.CRASH,
        cause=("rank_crashed",),
        certainty=("PROVEN",),
        advice_any=("memory", "oom", "dmesg"),
    ),
    Fault(
        kind="stop",
        event="preempt",
        title="is stopped by SIGSTOP",
        strikes=_anywhere,
        cause=("process_frozen",),
        certainty=("STALLED", "PROVEN"),
        advice_any=("kill -cont", "sigcont"),
        call_site=_lines("Host.make_room", "os.kill("),
    ),
    Fault(
        kind="gil",
        event="vocabulary",
        title="sleeps in native code that holds the GIL",
        strikes=_anywhere,
        cause=("host_stall",),
        certainty=("STALLED", "PROVEN"),
        advice_any=("gil",),
        call_site=_lines("Host.refresh_vocabulary", "self.native.sleep("),
    ),
    Fault(
        kind="lock",
        event="journal",
        title="waits for a lock that another of its threads never gives back",
        strikes=_at_any_step,
        cause=("host_stall",),
        certainty=("STALLED", "PROVEN"),
        advice_any=("lock",),
        call_site=_lines("Host.write_journal", "with self.lock"),
    ),
    Fault(
        kind="dead_mount",
        event="mount",
        title="reads a file that never answers",
        strikes=_at_any_step,
        cause=("data_stall",),
        certainty=("STALLED",),
        advice_any=("deadline", "mount", "timeout"),
        call_site=(
            *_lines("Streams._read", "with open(self.unanswered"),
            *_lines("Training.run", "in loader"),
        ),
    ),
    Fault(
        kind="dead_disk",
        event="disk",
        title="writes a checkpoint to a file that takes nothing",
        strikes=_when_saving,
        cause=("stuck_save",),
        certainty=("STALLED",),
        advice_any=("storage", "disk"),
        call_site=_lines("Training.save", "torch.save(state"),
    ),
    Fault(
        kind="frozen_store",
        event="store frozen",
        title="writes to a store whose process has been stopped",
        strikes=_at_the_reporter,
        cause=("host_stall", "transport"),
        certainty=("STALLED",),
        advice_any=("deadline", "network", "store"),
        call_site=_lines("Progress.tell", "self.store.add("),
    ),
    Fault(
        kind="dead_store",
        event="store gone",
        title="writes to a store whose process is gone, and raises",
        strikes=_at_the_reporter,
        expect=Expect.CRASH,
        cause=("rank_crashed",),
        certainty=("PROVEN",),
        advice_any=("exception",),
        call_site=_lines("Progress.tell", "self.store.add("),
    ),
    Fault(
        kind="slow_worker",
        event="cold",
        title="reads one batch for 10 s, and all is well",
        strikes=_at_any_step,
        expect=Expect.HEALTHY,
    ),
    Fault(
        kind="slow_disk",
        event="busy disk",
        title="copies a checkpoint for 12 s, and all is well",
        strikes=_when_saving,
        expect=Expect.HEALTHY,
    ),
)


def draw(seed: int, count: int) -> tuple[Truth, ...]:
    """Return so many cases; the same seed gives the same ones, and a larger count begins with a smaller one's."""
    return tuple(_case(seed, number) for number in range(count))


def _case(seed: int, number: int) -> Truth:
    chance = random.Random(f"{seed}:{number}")
    # Every kind comes once before any comes twice, so that a small count is a fair sample.
    order = list(FAULTS)
    random.Random(f"{seed}:round {number // len(FAULTS)}").shuffle(order)
    return truth_of(order[number % len(FAULTS)], chance, f"i{seed}-{number}")


def truth_of(fault: Fault, chance: random.Random, name: str) -> Truth:
    """Draw a training and a place in it for a fault, and say what is then true."""
    shape = _shape(chance)
    rank, step, place = fault.strikes(chance, shape)
    config = {**dataclasses.asdict(shape), "events": [(fault.event, rank, step, place)]}
    del config["nproc"]
    found = Truth(
        id=f"{name}-{fault.kind}",
        title=f"Rank {rank} {fault.title} (step {step}, {place})",
        nproc=shape.nproc,
        expect=fault.expect,
        confirmed="Derived from the plan of the case.",
        timeout_s=150.0,
        program=PROGRAM,
        arguments=(json.dumps(config),),
    )
    if fault.expect is Expect.HEALTHY:
        return found
    return dataclasses.replace(
        found,
        cause=fault.cause,
        certainty=fault.certainty,
        culprits=(rank,),
        advice_any=fault.advice_any,
        sides=(Side(ranks=(rank,), call_site=fault.call_site),),
    )


def _shape(chance: random.Random) -> Shape:
    nproc = chance.choices((2, 3, 4), weights=(4, 4, 2))[0]
    return Shape(
        nproc=nproc,
        sharded=chance.random() < 0.4,
        width=chance.choice((16, 32, 48, 64)),
        depth=chance.randint(1, 4),
        batch=chance.choice((12, 16, 24)),
        workers=chance.choice((0, 0, 1)),
        steps=chance.randrange(30, 50),
        report_every=chance.randint(4, 7),
        reporter=chance.randrange(nproc),
    )
