"""Run the zoo and print how many verdicts are right.

python -m tests.zoo.runner [--only z01,z09] [--repeat N] [--jobs N] [--json FILE] [--keep DIR] [--plain]
                        [--scoreboard DIR]
python -m tests.zoo.runner --fork [...]             (ranks are forked after one import of torch, as in CI)
python -m tests.zoo.runner --backend stream [...]   (collectives that return when they are enqueued, as NCCL's do)
python -m tests.zoo.runner --seed 7 --count 20      (cases drawn by injection.py; --only then takes their ids)
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from . import injection, plain, stream
from .forking.torch_once import forking_torchrun
from .jobs import Job, Launcher, torchrun, watched
from .scoring import report, scoreboard
from .scoring.verdicts import CHECKS, Score, score
from .truth import Backend, Truth, TruthError, load_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for on the command line."""

    only: tuple[str, ...]
    repeat: int
    jobs: int
    json: Path | None
    keep: Path | None
    plain: bool
    scoreboard: Path | None
    seed: int | None
    count: int
    backend: Backend
    fork: bool


def run(
    truth: Truth, directory: Path, backend: Backend = Backend.GLOO, launcher: Launcher = torchrun, server: str = ""
) -> Score:
    """Run one program under ncclwatch, once, and score the verdict. Without the address of a server it has its own."""
    on_hang = "abort" if truth.expect.alarms else "report"
    path = directory / "report.json"
    program, arguments, extra = truth.program, truth.arguments, {}
    if backend is Backend.STREAM:
        program, arguments, extra = stream.RUN, (str(program), *arguments), stream.environment()
    command = watched(path, on_hang, launcher(program, truth.nproc, arguments), server)
    with Job(command, directory, extra) as job:
        ended = job.wait(truth.timeout_s)
    return score(truth, ended, report.read(path))


def quickest(truth: Truth) -> Launcher:
    """Return how a program is started where time is short: forked, unless how its ranks begin or end is in question."""
    return torchrun if truth.needs_torchrun else forking_torchrun


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 means that something is wrong."""
    options = _parse(arguments)
    try:
        truths = load_all(options.only) if options.seed is None else _drawn(options)
    except TruthError as error:
        print(error, file=sys.stderr)
        return 2
    if options.backend is Backend.STREAM:
        truths = tuple(truth for truth in truths if not truth.unfit_for_stream)
    return _confirm_all(truths, options) if options.plain else _score_all(truths, options)


def _drawn(options: Options) -> tuple[Truth, ...]:
    cases = injection.draw(options.seed or 0, options.count)
    return tuple(case for case in cases if not options.only or case.id in options.only)


def _score_all(truths: Sequence[Truth], options: Options) -> int:
    scores: list[Score] = []
    with _workspace(options.keep) as workspace:
        print(_row("program", [*CHECKS, "verdict after", "run"]))
        runs = [(truth, workspace / f"{truth.id}-{number}") for number in range(options.repeat) for truth in truths]
        with ThreadPoolExecutor(options.jobs) as pool:
            for seen in pool.map(lambda one: _run(*one, options), runs):
                scores.append(seen)
                print(_score_row(seen), flush=True)
                for fault in seen.faults:
                    print(f"    {fault}", flush=True)
    print(summary(scores))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(scores)))
    if options.scoreboard:
        print(scoreboard.write(options.scoreboard, scoreboard.build(truths, scores)))
    return 0 if all(score.right for score in scores) else 1


def _run(truth: Truth, directory: Path, options: Options) -> Score:
    return run(truth, directory, options.backend, quickest(truth) if options.fork else torchrun)


def _confirm_all(truths: Sequence[Truth], options: Options) -> int:
    confirmations: list[plain.Confirmation] = []
    with _workspace(options.keep) as workspace:
        for number in range(options.repeat):
            for truth in truths:
                seen = plain.confirm(truth, workspace / f"{truth.id}-{number}")
                confirmations.append(seen)
                state = f"WRONG ({seen.wrong})" if seen.wrong else truth.expect.value
                print(f"{seen.program:<28}{state}: {seen.seen}", flush=True)
                for place in seen.places:
                    print(f"    {place}", flush=True)
    wrong = sum(1 for seen in confirmations if seen.wrong)
    print(f"{len(confirmations) - wrong} of {len(confirmations)} as their truth says")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(confirmations)))
    return 1 if wrong else 0


def summary(scores: Sequence[Score]) -> str:
    """Say in a few lines how good the verdicts were."""
    lines = [f"{sum(score.right for score in scores)} right of {len(scores)}"]
    times = [s.onset_to_verdict_s for s in scores if s.onset_to_verdict_s is not None]
    if times:
        lines.append(
            f"onset to verdict: median {statistics.median(times):.1f} s, max {max(times):.1f} s ({len(times)} runs)"
        )
    early = [s.foretold_s for s in scores if s.foretold_s is not None]
    if early:
        lines.append(f"foretold before the onset: median {statistics.median(early):.1f} s, min {min(early):.1f} s")
    return "\n".join(lines)


def _score_row(score: Score) -> str:
    asked = {check.name: check for check in score.checks}
    marks = ["-" if name not in asked else "WRONG" if asked[name].wrong else "ok" for name in CHECKS]
    after = f"{score.onset_to_verdict_s:.1f} s" if score.onset_to_verdict_s is not None else "-"
    return _row(score.program, [*marks, after, f"{score.wall_s:.0f} s"])


def _row(first: str, cells: Sequence[str]) -> str:
    return f"{first:<28}" + "".join(f"{cell:<{max(10, len(cell) + 2)}}" for cell in cells).rstrip()


@contextlib.contextmanager
def _workspace(keep: Path | None) -> Iterator[Path]:
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="run-", dir=keep)).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.runner", description=__doc__)
    parser.add_argument("--only", default="", help="ids or names of programs, with commas")
    parser.add_argument("--repeat", type=int, default=1, help="how often each program runs")
    parser.add_argument("--jobs", type=int, default=1, help="how many programs run at the same time")
    parser.add_argument("--json", type=Path, help="write all scores to this file")
    parser.add_argument("--keep", type=Path, help="keep output and reports in this directory")
    parser.add_argument("--plain", action="store_true", help="run without ncclwatch; check the programs")
    parser.add_argument("--scoreboard", type=Path, help="write scoreboard.json and scoreboard.md to this directory")
    parser.add_argument("--seed", type=int, help="draw cases with injected faults instead of the programs")
    parser.add_argument("--count", type=int, default=len(injection.FAULTS), help="how many cases to draw")
    parser.add_argument("--backend", type=Backend, choices=tuple(Backend), default=Backend.GLOO)
    parser.add_argument(
        "--fork", action="store_true", help="fork ranks after one import of torch, where that is the same"
    )
    given = parser.parse_args(arguments)
    only = tuple(name.strip() for name in given.only.split(",") if name.strip())
    return Options(
        only=only,
        repeat=given.repeat,
        jobs=given.jobs,
        json=given.json,
        keep=given.keep,
        plain=given.plain,
        scoreboard=given.scoreboard,
        seed=given.seed,
        count=given.count,
        backend=given.backend,
        fork=given.fork,
    )


if __name__ == "__main__":
    sys.exit(main())
