"""The command `ncclwatch analyze`, contributed to the command line through an entry point."""

import gc
import sys
from pathlib import Path

import click
import msgspec

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.words.console import JSON_HELP, Progress, complain, put, put_json, wants_json
from ncclwatch.contract.words.printable import harmless
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.judge import judge
from ncclwatch_server.offline.answer import Answer, answer, incidents_of, incidents_of_capture, lines
from ncclwatch_server.offline.errors import NothingToAnalyze
from ncclwatch_server.offline.gather import Gathered, gather, look_deeper
from ncclwatch_server.offline.suspects import suspects

EXIT_UNUSABLE = 2


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json/--text", "as_json", default=None, help=JSON_HELP)
def analyze(paths: tuple[Path, ...], as_json: bool | None) -> None:
    """Find what hung a job in the files in PATHS that it left behind.

    Reads what `ncclwatch capture` has written (zip), Flight Recorder dumps (pickle or JSON, of any version),
    torchtitan's comm_traces, rings left after a crash, py-spy stacks (JSON), saved reports and logs with NCCL's own
    words, in any mixture and with ranks missing.
    Exit code 0 when something was explained or nothing is wrong, 2 when nothing could be read.
    """
    gc.disable()  # dumps are large trees without cycles, and this process ends soon
    try:
        gathered = Gathered()
        with Progress(lambda: f"reading what the job left behind, {gathered.files} files so far"):
            found = _analyze(paths, gathered)
    except NcclwatchError as error:
        complain(error)
        sys.exit(EXIT_UNUSABLE)
    job, snapshot, incidents = found
    if wants_json(as_json):
        put_json(_encoded(answer(job, snapshot, gathered, incidents)))
    else:
        put(*lines(snapshot, gathered, incidents))


def _encoded(said: Answer) -> bytes:
    try:
        return msgspec.json.encode(said)
    except UnicodeEncodeError:  # a lone surrogate, as of a file's name in no UTF-8, which JSON cannot say
        return msgspec.json.encode(_sayable(msgspec.to_builtins(said)))


def _sayable(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sayable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(part) for part in value]
    return harmless(value) if isinstance(value, str) else value


def _analyze(paths: tuple[Path, ...], gathered: Gathered) -> tuple[str, JobSnapshot, tuple[Incident, ...]]:
    gather(paths, gathered)
    if gathered.empty:
        raise NothingToAnalyze(_nothing(paths, gathered.notes))
    snapshot = gathered.snapshot()
    wanted = suspects(snapshot) if gathered.capture is None else ()
    if wanted:
        look_deeper(gathered, wanted)
        snapshot = gathered.snapshot()
    if gathered.capture is not None:
        return snapshot.job, snapshot, incidents_of_capture(gathered.capture, snapshot, judge(snapshot))
    job = paths[0].resolve().name
    return job, snapshot, incidents_of(job, snapshot, judge(snapshot), gathered.reports)


def _nothing(paths: tuple[Path, ...], notes: list[str]) -> str:
    tried = ", ".join(map(str, paths[:3]))
    why = f" Of the files there: {'; '.join(notes[:5])}" if notes else ""
    return (
        f"nothing in {tried} tells of a job. Name files, or directories, with captures (zip), Flight Recorder dumps "
        f"(pickle or JSON), rings (*.ring), py-spy stacks (JSON), saved reports or logs.{why}"
    )
