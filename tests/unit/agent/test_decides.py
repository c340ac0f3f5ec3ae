"""What the agent decides from values alone: progress, endings, burials, servers, backoff, spool."""

import json
import os
import signal
from dataclasses import replace

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidMessage, InvalidStatus, InvalidURI
from websockets.http11 import Response

from ncclwatch.contract import config
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import CallSite, Ending, ProcessState, ProcessView, RankView
from ncclwatch.contract.ring.views import parse_note
from ncclwatch_agent.agent import IDLE_S, UNDELIVERED_S, UNHEARD_S, Remains, may_be_buried
from ncclwatch_agent.process.job_terminal import is_launcher
from ncclwatch_agent.process.procfs import kernel_place, parse_io, parse_stat
from ncclwatch_agent.process.rank_process import CPU_STILL_SHARE, Meter
from ncclwatch_agent.ranks.endings import Death, describe, is_abnormal, merge
from ncclwatch_agent.server_choice import token_for
from ncclwatch_agent.stacks.py_spy import parse_dump, refusal
from ncclwatch_agent.uplink.connection import STRANGER_BACKOFF_S, backoff_s, explain, websocket_url
from ncclwatch_agent.uplink.local_server import Answer, wanted_port
from ncclwatch_agent.uplink.spool import Spool, SpooledViews

S = 1_000_000_000
EXITED_0, EXITED_3, KILLED = 0, 3 << 8, int(signal.SIGKILL)
SITE = CallSite(file="/train.py", line=7, function="main")
CRASH_NOTE = Ending(kind="crashed", exit_code=1, exception="ValueError: x", site=SITE)
EXIT_NOTE = Ending(kind="exited")


def metered(*growth: float) -> Meter:
    """Return a meter for CPU seconds after one observation a second."""
    meter = Meter(CPU_STILL_SHARE)
    meter.add(0.0, S)
    for second, grown in enumerate(growth, 2):
        meter.add(grown, second * S)
    return meter


def test_nothing_is_called_still_before_an_interval_was_measured() -> None:
    meter = Meter(CPU_STILL_SHARE)
    assert meter.still_s(S) == 0
    meter.add(0.0, S)
    assert meter.still_s(2 * S) == 0


RATES = [((0.0,), 1.0), ((0.019,), 1.0), ((0.02,), 0.0), ((1.0,), 0.0), ((1.0, 0.0, 0.0), 2.0), ((0.0, 0.0, 1.0), 0.0)]


@pytest.mark.parametrize(("growth", "still_s"), RATES)
def test_stillness_is_less_than_two_hundredths_of_a_core(growth: tuple[float, ...], still_s: float) -> None:
    assert metered(*growth).still_s((len(growth) + 1) * S) == still_s


def test_a_little_work_now_and_then_is_not_that_of_the_rank() -> None:
    """A thread that writes a line every ten seconds, as metrics and logs do."""
    meter = Meter(CPU_STILL_SHARE, 0.1)
    meter.add(0.0, S)
    for second in range(2, 62):
        meter.add(0.04 if second % 10 == 0 else 0.001, second * S)
    assert meter.still_s(61 * S) == 60.0
    meter.add(0.2, 62 * S)
    assert meter.still_s(62 * S) == 0.0, "that is more"


def test_who_goes_on_slowly_is_seen_within_seconds() -> None:
    meter = Meter(CPU_STILL_SHARE, 0.1)
    meter.add(0.0, S)
    for second in range(2, 32):
        meter.add(0.001, second * S)
    second = 32
    while meter.still_s((second - 1) * S) > 0:
        meter.add(0.04, second * S)
        second += 1
    assert second <= 32 + 6
    for later in range(second, second + 30):
        meter.add(0.03, later * S)
        assert meter.still_s(later * S) == 0.0


def test_a_look_soon_after_another_does_not_judge_by_a_tick_of_the_clock() -> None:
    meter = metered(0.0)
    meter.add(0.01, 2 * S + S // 20)  # 20 % of a core, for a twentieth of a second
    assert meter.still_s(2 * S + S // 20) == pytest.approx(1.05)
    meter.add(0.0, 3 * S)
    assert meter.still_s(3 * S) == 2.0


ENDINGS = [
    (None, Death(gone=False), None),
    (None, Death(gone=True), Ending(kind="vanished")),
    (None, Death(gone=True, status=EXITED_0), Ending(kind="exited", exit_code=0)),
    (None, Death(gone=True, status=EXITED_3), Ending(kind="crashed", exit_code=3)),
    (None, Death(gone=True, status=KILLED), Ending(kind="signalled", signal=9)),
    (None, Death(gone=True, status=KILLED | 0x80), Ending(kind="signalled", signal=9)),
    (EXIT_NOTE, Death(gone=False), EXIT_NOTE),
    (EXIT_NOTE, Death(gone=True), EXIT_NOTE),
    (EXIT_NOTE, Death(gone=True, status=EXITED_3), Ending(kind="crashed", exit_code=3)),
    (EXIT_NOTE, Death(gone=True, status=KILLED), Ending(kind="signalled", signal=9)),
    (CRASH_NOTE, Death(gone=True), CRASH_NOTE),
    (CRASH_NOTE, Death(gone=True, status=1 << 8), CRASH_NOTE),
    (CRASH_NOTE, Death(gone=True, status=KILLED), replace(CRASH_NOTE, kind="signalled", signal=9, exit_code=None)),
]


@pytest.mark.parametrize(("note", "death", "ending"), ENDINGS)
def test_the_kernels_word_on_an_end_goes_before_the_ranks(
    note: Ending | None, death: Death, ending: Ending | None
) -> None:
    assert merge(note, death) == ending


def test_a_rank_that_was_killed_on_its_way_out_did_not_end_with_what_it_had_handled():
    note = Ending(kind="exited", exception="E: handled", site=SITE, age_s=2.0)
    assert merge(note, Death(gone=True, status=KILLED)) == Ending(kind="signalled", signal=KILLED, age_s=2.0)


NOTES = [
    ('{"kind":"exited","exit_code":0}', Ending(kind="exited", exit_code=0)),
    ('{"exception":"E: x"}', Ending(kind="crashed", exception="E: x")),
    ('{"exit_code":2}', Ending(kind="crashed", exit_code=2)),
    ('{"kind":"alien"}', Ending(kind="exited")),
    ('{"kind":"crashed","file":"/train.py","line":7,"function":"main"}', Ending(kind="crashed", site=SITE)),
    ("[]", None),
    ("garbage", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "ending"), NOTES)
def test_what_a_rank_wrote_of_its_end_is_read_with_suspicion(text: str, ending: Ending | None) -> None:
    assert parse_note(text) == ending


def test_endings_are_told_as_people_say_them() -> None:
    assert describe(Ending(kind="signalled", signal=9)) == "killed by SIGKILL"
    assert describe(Ending(kind="signalled", signal=99)) == "killed by signal 99"
    assert describe(CRASH_NOTE) == "crashed with exit code 1: ValueError: x"
    assert describe(Ending(kind="vanished")) == "vanished; nobody saw how"
    assert [is_abnormal(Ending(kind=kind)) for kind in ("exited", "crashed", "signalled", "vanished")] == [
        False, True, True, True,
    ]  # fmt: skip


BURIALS = [
    (IDLE_S - 0.1, 100.0, False, True, False),
    (IDLE_S, 100.0, False, True, True),
    (100.0, IDLE_S - 0.1, False, True, False),  # a server heard of it just now and may have something to say
    (IDLE_S + UNDELIVERED_S - 0.1, 100.0, True, True, False),
    (IDLE_S + UNDELIVERED_S, 100.0, True, True, True),
    (IDLE_S + UNHEARD_S - 0.1, 100.0, True, False, False),
    (IDLE_S + UNHEARD_S, 100.0, True, False, True),
]


@pytest.mark.parametrize(("over_s", "delivered_s", "undelivered", "reachable", "buried"), BURIALS)
def test_a_job_is_let_go_when_its_end_was_told_or_nobody_will_hear_of_it(
    over_s: float, delivered_s: float, undelivered: bool, reachable: bool, buried: bool
) -> None:
    remains = Remains(over_s=over_s, delivered_s=delivered_s, undelivered=undelivered, reachable=reachable)
    assert may_be_buried(remains) is buried


PORTS = [(Answer.NOBODY, 8470), (Answer.STRANGER, 0), (Answer.FOREIGN, 0), (Answer.REFUSAL, None)]


@pytest.mark.parametrize(("answer", "port"), PORTS)
def test_a_server_of_our_own_is_started_beside_whatever_has_the_port(answer: Answer, port: int | None) -> None:
    assert wanted_port(answer) == port


TOKENS = [
    ({}, "http://head:8470", config.NAMED, "t"),
    ({}, "http://head:8470", config.UNNAMED, ""),
    ({}, "http://127.0.0.1:5", config.OWN, ""),
    ({"NCCLWATCH_SERVER": "https://head"}, "https://HEAD:443/", config.NAMED, "t"),
    ({"NCCLWATCH_SERVER": "https://head"}, "http://head", config.NAMED, ""),
    ({"NCCLWATCH_SERVER": "https://head"}, "https://head:8443", config.NAMED, ""),
    ({"NCCLWATCH_SERVER": "https://head"}, "https://other", config.NAMED, ""),
    ({"NCCLWATCH_SERVER": "head:8470"}, "http://head:8470", config.NAMED, "t"),
    ({"NCCLWATCH_SERVER": "http://a:1", "NCCLWATCH_SERVER_OWN": "http://a:1"}, "http://b:2", config.NAMED, "t"),
]


@pytest.mark.parametrize(("environ", "url", "naming", "token"), TOKENS)
def test_a_token_is_shown_to_the_server_it_came_with_and_never_to_one_that_nobody_named(
    environ: dict[str, str], url: str, naming: str, token: str
) -> None:
    assert token_for(url, naming, {**environ, "NCCLWATCH_TOKEN": "t"}) == token


URLS = [
    ("http://head:8470", "ws://head:8470/ws/agent"),
    ("https://head", "wss://head/ws/agent"),
    ("https://head/watch/", "wss://head/watch/ws/agent"),
    ("head:8470", "ws://head:8470/ws/agent"),
]


@pytest.mark.parametrize(("url", "address"), URLS)
def test_the_websocket_of_a_server_is_found_from_its_url(url: str, address: str) -> None:
    assert websocket_url(url) == address


def test_attempts_become_rarer_up_to_five_seconds_and_are_rare_at_once_where_they_are_hopeless() -> None:
    delays = [backoff_s(failures, Answer.NOBODY, 0.5) for failures in range(1, 12)]
    assert delays[0] == 0.2
    assert delays == sorted(delays)
    assert delays[-1] == 5.0
    assert backoff_s(10_000, Answer.NOBODY, 1.0) == 6.25
    assert backoff_s(1, Answer.STRANGER, 0.5) == backoff_s(1, Answer.REFUSAL, 0.5) == STRANGER_BACKOFF_S


def answered(status: int) -> InvalidStatus:
    """Return what the library raises for an HTTP answer."""
    return InvalidStatus(Response(status, "", Headers(), b""))


FAILURES: list[tuple[Exception, Answer, str]] = [
    (ConnectionRefusedError(111, "refused"), Answer.NOBODY, "start ncclwatch-server there"),
    (TimeoutError(), Answer.NOBODY, "does not answer in time"),
    (answered(503), Answer.NOBODY, "HTTP 503"),
    (answered(404), Answer.STRANGER, "is not an ncclwatch server (HTTP 404 on /ws/agent)"),
    (answered(200), Answer.STRANGER, "name the right one in NCCLWATCH_SERVER"),
    (answered(403), Answer.REFUSAL, "set NCCLWATCH_TOKEN"),
    (InvalidMessage("no HTTP"), Answer.STRANGER, "no HTTP"),
    (WireError("nonsense"), Answer.STRANGER, "nonsense"),
    (InvalidURI("x", "bad"), Answer.REFUSAL, "is no address of a server"),
]


@pytest.mark.parametrize(("error", "answer", "words"), FAILURES)
def test_each_failure_to_connect_has_a_sentence_that_says_what_to_do(
    error: Exception, answer: Answer, words: str
) -> None:
    found = explain("http://head:1", error)
    assert found.answer is answer
    assert found.sentence.startswith(("http://head:1", "no server at http://head:1"))
    assert words in found.sentence


def views(index: int, rank: int = 0) -> SpooledViews:
    """Return the last view of one rank."""
    view = RankView(
        rank=rank, local_rank=0, host="h", pid=1, device="", world_size=2, local_world_size=2, attempt=0,
        process=ProcessView(state=ProcessState.GONE), pulse_age_s=0.0, initialised=True,
    )  # fmt: skip
    return SpooledViews(index, (view,), taken_ns=10 * S)


def test_the_spool_drops_the_oldest_and_counts_what_no_server_heard() -> None:
    first, second, third = views(1), views(1), views(1)
    spool = Spool(bytes_max=first.size * 2)
    for entry in (first, second, third):
        spool.put(entry)
    assert spool.unsent() == [second, third]
    assert spool.dropped == 1


def test_the_spool_drops_what_was_delivered_before_what_was_not() -> None:
    first, second, third = views(1), views(1), views(1)
    spool = Spool(bytes_max=first.size * 2)
    spool.put(first)
    spool.put(second)
    second.sent, second.delivered_at = True, 5.0
    spool.put(third)
    assert spool.unsent() == [first, third]
    assert spool.dropped == 0


def test_a_new_connection_is_sent_everything_again_but_it_counts_as_delivered() -> None:
    spool, entry = Spool(), views(1)
    spool.put(entry)
    assert spool.undelivered(1) and not spool.undelivered(2)
    entry.sent, entry.delivered_at = True, 5.0
    assert spool.unsent() == []
    spool.start_over()
    assert spool.unsent() == [entry] and not spool.undelivered(1)
    spool.forget(1)
    assert spool.unsent() == []


def test_views_that_waited_in_the_spool_say_how_old_they_are() -> None:
    assert views(1).message(13 * S).ranks[0].news_age_s == 3.0


def test_stat_is_read_whatever_the_process_calls_itself() -> None:
    tail = b" Z 7" + b" 0" * 9 + b" 30 12 0 0 20 0 1 0 136898" + b" 0" * 29 + b" 768"
    found = parse_stat(b"42 (a) R (b" + b")" + tail)
    assert found is not None
    assert (found.state, found.parent, found.cpu_ticks) == (ProcessState.ZOMBIE, 7, 42)
    assert (found.start_ticks, found.exit_status) == (136898, 768)
    assert parse_stat(b"") is None
    assert parse_stat(b"42 (x) S") is None


def test_io_is_the_sum_of_what_went_through_the_page_cache_and_past_it() -> None:
    text = b"rchar: 1\nwchar: 2\nsyscr: 100\nread_bytes: 4\nwrite_bytes: 8\ncancelled_write_bytes: 100\n"
    assert parse_io(text) == 15
    assert parse_io(b"") is None


PLACES = [
    ("202 0x0 0x0", "futex_do_wait", "futex (futex_do_wait)"),
    ("9999 0x0", "0", "system call 9999"),
    ("0 0x0 0x7f", "n_tty_read", "read of standard input (n_tty_read)"),
    ("270 0x1 0x7f", "0", "pselect6 of standard input"),
    ("0 0x3 0x7f", "pipe_read", "read (pipe_read)"),
    ("232 0x0 0x7f", "ep_poll", "epoll_wait (ep_poll)"),
    ("running", "0", ""),
    ("", "folio_wait", "folio_wait"),
    ("-1 0x0", "", ""),
]


@pytest.mark.parametrize(("syscall", "channel", "place"), PLACES)
def test_where_a_thread_sits_in_the_kernel_is_named_as_far_as_it_can_be_read(
    syscall: str, channel: str, place: str
) -> None:
    assert kernel_place(syscall, channel, "x86_64") == place


DENIED = "Error: Failed to open process\nReason: Permission denied (os error 13)"
REFUSALS = [
    ("1", False, False, "sudo sysctl kernel.yama.ptrace_scope=0"),
    ("1", False, True, "--cap-add SYS_PTRACE"),
    ("", False, False, "sudo ncclwatch-agent"),
    ("3", True, False, "only a reboot"),
]


@pytest.mark.parametrize(("scope", "capable", "contained", "command"), REFUSALS)
def test_a_refused_look_comes_with_the_command_that_would_allow_it(
    scope: str, capable: bool, contained: bool, command: str
) -> None:
    found = refusal(42, DENIED, ptrace_scope=scope, capable=capable, contained=contained)
    assert "pid 42" in found and command in found


def test_another_failure_of_py_spy_is_told_as_it_is() -> None:
    found = refusal(42, "Error: No such process\n", ptrace_scope="1", capable=False, contained=True)
    assert found == "py-spy could not read pid 42: Error: No such process"


def test_what_py_spy_prints_is_bounded_and_anything_else_is_a_failure() -> None:
    frames = [{"name": "f", "filename": "a.py", "line": line, "module": None} for line in range(300)]
    found = parse_dump(3, 7, json.dumps([{"thread_name": None, "os_thread_id": 9, "frames": frames}]).encode())
    ((name, stack),) = found.threads
    assert (found.rank, name, len(stack), stack[0].line) == (3, "thread 9", 100, 0)
    assert "no stacks" in parse_dump(3, 7, b"<html>").failure


def test_only_programs_that_start_ranks_are_taken_for_launchers() -> None:
    assert is_launcher(["/usr/bin/python", "/venv/bin/torchrun", "train.py"])
    assert is_launcher(["python", "-m", "torch.distributed.run", "train.py"])
    assert not is_launcher(["/bin/bash", "-c", "python train.py"])
    assert not is_launcher([])


def test_the_exit_codes_used_here_are_those_of_waitpid() -> None:
    assert [os.waitstatus_to_exitcode(status) for status in (EXITED_0, EXITED_3, KILLED)] == [0, 3, -9]


def test_the_end_of_one_job_is_not_delayed_by_what_others_deliver() -> None:
    """A node on which jobs come and go all the time has to let go of those that are over."""
    spool = Spool()
    for index, at in ((1, 5.0), (2, 9.0), (1, 6.0)):
        entry = SpooledViews(index, (), 0)
        entry.delivered_at = at
        spool.put(entry)
    assert [spool.delivered_at(index) for index in (1, 2, 3)] == [6.0, 9.0, 0.0]
