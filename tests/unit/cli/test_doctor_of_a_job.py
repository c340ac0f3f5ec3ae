"""What `ncclwatch doctor --job` says of the nodes of a job."""

from collections.abc import Mapping

import msgspec
import pytest

from ncclwatch.cli.client.answers import Health, HostRanks, Job, JobStacks, Node, Refusal, Unseen
from ncclwatch.cli.client.http import NotDone, NotKnown
from ncclwatch.cli.doctor import job_checks
from ncclwatch.cli.doctor.check import Status


class Server:
    """A server whose answers are given."""

    url = "http://head:8470"

    def __init__(
        self, unseen: Mapping[int, str] | None = None, *, refused: tuple[Refusal, ...] = (), old: bool = False
    ):
        self.asked: list[tuple[int, ...]] = []
        self._unseen, self._refused, self._old = unseen, refused, old

    def health(self) -> Health:
        return Health(service="ncclwatch", version="2.0")

    def refusals(self) -> tuple[Refusal, ...]:
        if self._old:
            raise NotKnown("no such path")
        return self._refused

    def stacks_json(self, job: str, ranks: tuple[int, ...], *, native: bool) -> bytes:
        self.asked.append(ranks)
        if self._unseen is None:
            raise NotDone("this token may not ask for stacks")
        unseen = tuple(Unseen(ranks=(rank,), why=why) for rank, why in self._unseen.items())
        return msgspec.json.encode(
            JobStacks(job=job, world_size=4, asked=ranks, unseen=unseen, hosts=(HostRanks(host="h", ranks=ranks),))
        )

    def stacks(self, data: bytes) -> JobStacks:
        return msgspec.json.decode(data, type=JobStacks)


def node(host: str, *ranks: int, **changes: object) -> Node:
    return Node(host=host, ranks=ranks, **{"version": "2.0", **changes})  # type: ignore[arg-type]


def job(*nodes: Node, world_size: int = 4, outcome: str | None = None) -> Job:
    return Job(id="team/run", state="running", world_size=world_size, nodes=nodes, outcome=outcome)


def said(server: Server, of: Job) -> dict[str, tuple[Status, str]]:
    """Return the status and the words of each check."""
    state = job_checks.look(server, of)  # type: ignore[arg-type]
    return {each.name: (each.status, f"{each.fact}; {each.fix}") for each in job_checks.checks(state)}


def test_of_a_job_that_is_well_all_checks_pass() -> None:
    server = Server({})
    found = said(server, job(node("a", 0, 1, clock_ahead_s=0.2), node("b", 2, 3)))
    assert {status for status, _ in found.values()} == {Status.PASS}
    assert server.asked == [(0, 2)], "one rank on each node"
    assert found["agents"][1].startswith("all 4 ranks are reported, by 2 agents")


def test_ranks_of_which_no_agent_speaks_are_named_with_what_their_nodes_need() -> None:
    status, words = said(Server({}), job(node("a", 0, 1), world_size=6))["agents"]
    assert status is Status.FAIL
    assert "2 of 6 ranks are reported; no agent speaks for ranks 2-5" in words
    assert "NCCLWATCH_SERVER=http://head:8470" in words


@pytest.mark.parametrize("changes", [{"connected": False, "quiet_s": 40.0}, {"quiet_s": 40.0}])
def test_a_node_that_is_silent_is_named(changes: dict[str, object]) -> None:
    status, words = said(Server({}), job(node("a", 0, 1), node("b", 2, 3, **changes)))["silent"]
    assert status is Status.FAIL
    assert "b (ranks 2-3) was heard 40 s ago for the last time" in words
    over = said(Server({}), job(node("a", 0, 1), node("b", 2, 3, **changes), outcome="completed"))
    assert "silent" not in over
    assert over["stacks"][0] is Status.PASS


def test_other_versions_and_clocks_are_named() -> None:
    found = said(Server({}), job(node("a", 0, 1, version="1.9"), node("b", 2, 3, clock_ahead_s=-3600.0)))
    assert found["versions"] == (Status.WARN, "the server has 2.0, a has 1.9; install ncclwatch 2.0 there")
    assert found["clocks"][0] is Status.WARN
    assert "b is 60 min behind" in found["clocks"][1]


def test_why_there_are_no_stacks_is_said() -> None:
    status, words = said(Server({2: "the kernel refused"}), job(node("a", 0, 1), node("b", 2, 3)))["stacks"]
    assert (status, words.split(";")[0]) == (Status.WARN, "b: the kernel refused")
    status, words = said(Server(None), job(node("a", 0, 1), node("b", 2, 3)))["stacks"]
    assert status is Status.WARN
    assert "not tried: this token may not ask for stacks" in words
    assert "NCCLWATCH_OPERATOR_TOKEN" in words


def test_who_was_refused_lately_is_told_unless_it_was_for_another_job() -> None:
    refused = (
        Refusal(where="10.0.0.3", reason="unknown token", times=4, ago_s=3.0),
        Refusal(where="c", reason="no room", job="team/run", ago_s=30.0),
        Refusal(where="d", reason="no room", job="other", ago_s=30.0),
        Refusal(where="e", reason="unknown token", ago_s=7200.0),
    )
    for nodes, wanted in (
        ((0, 1, 2), ["10.0.0.3, 3.0 s ago (4 times): unknown token", "c, 30 s ago: no room"]),
        ((0, 1, 2, 3), ["c, 30 s ago: no room"]),  # nobody is missing: who showed another token is none of its nodes
    ):
        state = job_checks.look(Server({}, refused=refused), job(node("a", *nodes)))  # type: ignore[arg-type]
        assert [each.fact for each in job_checks.checks(state) if each.name == "refused"] == wanted


def test_of_a_job_that_is_over_and_of_what_is_not_known_nothing_is_claimed() -> None:
    found = said(Server({}), job(outcome="completed"))
    assert {status for status, _ in found.values()} == {Status.PASS}
    assert found["agents"][1].startswith("the job is over: completed")
    assert found["clocks"][1].startswith("not known")
    assert found["versions"][1].startswith("not known")


def test_a_server_that_does_not_tell_whom_it_refused_is_asked_all_the_same() -> None:
    assert said(Server({}, old=True), job(node("a", 0, 1, 2, 3)))["agents"][0] is Status.PASS


def test_of_a_big_job_the_nodes_that_lack_something_come_first() -> None:
    nodes = [node(f"n{number}", number) for number in range(99)] + [node("bad", 99, quiet_s=60.0)]
    state = job_checks.look(Server({}), job(*nodes, world_size=100))  # type: ignore[arg-type]
    rows, more = job_checks.rows(state.nodes)
    assert rows[0][:3] == ("bad", "99", "silent for 60 s")
    assert (len(rows), more) == (job_checks.ROWS_MAX, 60)
