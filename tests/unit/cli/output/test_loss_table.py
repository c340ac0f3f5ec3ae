"""What `ncclwatch report --period` shows of the answer of a server, and what it says where it cannot."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ncclwatch.cli.client.answers import CauseLosses, LossReport, LossTotals
from ncclwatch.cli.client.http import Client
from ncclwatch.cli.commands.report import report
from ncclwatch.contract.errors import ConfigError

FROZEN = LossTotals(hangs=3, jobs=2, recovered=2, ended=1, lost_s=5400.0, rank_s=86_400.0, saved_s=3600.0)
LOST = LossTotals(hangs=1, jobs=1, open=1, lost_s=36.0, rank_s=576.0)
FOUND = LossReport(
    since="2026-11-20T10:00:00+00:00",
    until="2026-11-27T10:00:00+00:00",
    total=LossTotals(
        hangs=4, jobs=2, recovered=2, ended=1, open=1, lost_s=5436.0, rank_s=86_976.0, saved_s=3600.0,
        timeout_unknown=1, end_unknown=2,
    ),
    causes=(CauseLosses(cause="process_frozen", losses=FROZEN), CauseLosses(cause="node_lost", losses=LOST)),
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Answer the question, and note for which period it is asked."""
    periods: list[float] = []

    def answer(_: Client, within_s: float) -> bytes:
        periods.append(within_s)
        return msgspec.json.encode(FOUND)

    monkeypatch.setattr(Client, "check", lambda _: None)
    monkeypatch.setattr(Client, "losses_json", answer)
    monkeypatch.setenv("COLUMNS", "100")
    return periods


def typed(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(report, ["--server", "http://127.0.0.1:1", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def cells(lines: Iterable[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_a_period_is_shown_by_cause_with_a_column_for_each_end_that_there_was(asked: list[float]) -> None:
    code, out = typed("--period", "7d", "--text")
    assert (code, asked) == (0, [604_800])
    title, *lines = out.splitlines()
    assert title.startswith("hangs from 2026-11-2")
    assert cells(lines[:4]) == [
        "CAUSE HANGS JOBS RECOVERED ENDED OPEN TIME LOST RANK-HOURS TIME SAVED".split(),
        "process_frozen 3 2 2 1 - 1.5 h 24 1 h".split(),
        "node_lost 1 1 - - 1 36 s 0.16 -".split(),
        "all 4 2 2 1 1 1.5 h 24 1 h".split(),
    ]
    assert "of 1 hang nobody knows that timeout: nothing is counted as saved" in lines
    assert "of 2 hangs nobody saw the end: no time is counted as lost" in lines


@pytest.mark.usefixtures("asked")
def test_where_ranks_had_gpus_the_hours_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus = msgspec.to_builtins(FOUND)
    for losses in (with_gpus["total"], with_gpus["causes"][0]["losses"]):
        losses["gpu_s"] = 43_200.0
    monkeypatch.setattr(Client, "losses_json", lambda *_: msgspec.json.encode(with_gpus))
    lines = cells(typed("--period", "4w", "--text")[1].splitlines()[1:5])
    assert lines[0][-3:] == ["GPU-HOURS", "TIME", "SAVED"]
    assert (lines[1][-3], lines[2][-2], lines[3][-3]) == ("12", "-", "12")


@pytest.mark.usefixtures("asked")
def test_machines_get_the_answer_whole_and_files_are_written(tmp_path: Path) -> None:
    assert msgspec.json.decode(typed("--period", "24h")[1], type=LossReport) == FOUND
    code, _ = typed("--period", "24h", "-o", str(tmp_path / "week.txt"))
    assert code == 0
    assert "process_frozen" in (tmp_path / "week.txt").read_text()


@pytest.mark.usefixtures("asked")
def test_no_hang_and_an_answer_that_lacks_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = LossReport(since=FOUND.since, until=FOUND.until, total=LossTotals(hangs=0, jobs=0), without="it is away")
    monkeypatch.setattr(Client, "losses_json", lambda *_: msgspec.json.encode(empty))
    assert typed("--period", "7d", "--text")[1].splitlines()[1:] == ["it is away", "no hang was reported"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name an incident"),
        (("abc", "--period", "7d"), "name an incident"),
        (("--period", "week"), "'week' is no period; write 24h, 7d or 4w"),
        (("--period", "0d"), "'0d' is no period"),
        (("--period", "7d", "--html"), "the server has it as a page at /report"),
    ],
)
def test_what_cannot_be_done_is_said_with_what_to_type(arguments: tuple[str, ...], told: str) -> None:
    try:
        code, out = typed(*arguments)
    except ConfigError as error:
        code, out = 2, str(error)
    assert (code, told in out) == (2, True)
