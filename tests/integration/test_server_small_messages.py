"""Small messages of one bound token's holder, each within its limits, must not add up in the server's memory."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from websockets.sync.client import ClientConnection

from ncclwatch.contract import wire
from ncclwatch.contract.model.preflight import ModelFacts, RankFacts
from ncclwatch.contract.model.rank import CallSite, ThreadView
from tests.integration.fake_agent import reply
from tests.integration.hostile_lines import BOUND, MIB, READER, TEAM_B, admitted, announce, memory
from tests.integration.server_process import ServerProcess
from tests.integration.test_server_ownership import forged_view

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

GROWTH_MIB = 128  # views of one line may take 64


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, token=READER, environ=BOUND, program="tests.integration.pages_server") as process:
        process.get("/readyz")
        yield process


def all_was_read(line: ClientConnection) -> None:
    """Wait until the server has taken everything: it refuses a job beside the token's namespace."""
    line.send(announce("not-theirs", 63))
    while not isinstance(reply(line), wire.JobRefused):
        pass


def test_a_job_that_is_announced_again_with_another_number_of_ranks_is_not_kept_for_each_time(server):
    with admitted(server, TEAM_B, "b") as line:
        line.send(announce("team-b/run"))
        all_was_read(line)
        before = memory(server)
        for _ in range(150):
            line.send(announce("team-b/run", 1, world_size=200_000, ranks=(0,)))
        all_was_read(line)
        assert memory(server) - before < GROWTH_MIB


def test_an_attempt_that_is_over_is_not_kept_for_each_time_it_is_announced(server):
    with admitted(server, TEAM_B, "b") as line:
        line.send(announce("team-b/run"))
        line.send(announce("team-b/run", attempt=5))
        all_was_read(line)
        time.sleep(5)  # until attempt 0 was judged for the last time
        before = memory(server)
        for index in range(150):
            line.send(announce("team-b/run", 1 + index % 60, world_size=200_000, ranks=(0,)))
        all_was_read(line)
        assert memory(server) - before < GROWTH_MIB


def test_the_places_that_pages_show_of_ranks_are_bounded(server):
    ranks = tuple(range(256))
    with admitted(server, TEAM_B, "b") as line:
        line.send(announce("team-b/run", world_size=256, ranks=ranks))
        all_was_read(line)
        before = memory(server)
        place = CallSite(file="x" * 1_900_000, line=1, function="f")
        for first in range(0, 256, 4):
            views = tuple(
                replace(forged_view(rank), threads=(ThreadView(tid=1, main=True, issued=1, doing=place),))
                for rank in ranks[first : first + 4]
            )
            line.send(wire.encode(wire.Views(index=0, ranks=views)).decode())
        all_was_read(line)
        assert memory(server) - before < GROWTH_MIB


def test_the_parameters_of_models_that_nobody_has_asked_for_are_not_kept(server):
    ranks = tuple(range(16))
    names = tuple(f"{number:0160d}" for number in range(2000))
    with admitted(server, TEAM_B, "b") as line:
        for index in range(3):
            line.send(announce(f"team-b/run{index}", index, world_size=16, ranks=ranks))
        all_was_read(line)
        before = memory(server)
        for index in range(3):
            for key in range(16):
                for first in range(0, 16, 5):
                    part = tuple((rank, names) for rank in ranks[first : first + 5])
                    said = wire.Parameters(index=index, key=("DDP", str(key)), ranks=part)
                    line.send(wire.encode(said).decode())
        all_was_read(line)
        assert memory(server) - before < GROWTH_MIB


def test_how_ranks_were_set_up_takes_no_more_memory_than_views_may(server):
    ranks = tuple(range(64))
    with admitted(server, TEAM_B, "b") as line:
        for index in range(60):
            line.send(announce(f"team-b/run{index}", index, world_size=64, ranks=ranks))
        all_was_read(line)
        before = memory(server)
        for index in range(60):
            said = wire.Facts(
                index=index,
                alike=tuple(
                    wire.Alike(
                        ranks=(rank,),
                        facts=RankFacts(
                            models=tuple(
                                ModelFacts(
                                    kind=f"{model}",
                                    members=f"{rank}",
                                    units=tuple(f"{unit:02x}" for unit in range(95)),
                                    order="",
                                    names="",
                                    total=1,
                                )
                                for model in range(15)
                            )
                        ),
                    )
                    for rank in ranks
                ),
            )
            data = wire.encode(said)
            assert len(data) < MIB // 2, len(data)
            line.send(data.decode())
        all_was_read(line)
        assert memory(server) - before < GROWTH_MIB


def test_parts_of_answers_to_questions_that_nobody_asked_are_not_kept(server):
    thread = '["",[]]'
    dump = f'{{"rank":0,"threads":[{",".join([thread] * 4000)}]}}'
    part = f'{{"type":"stacks","index":0,"dumps":[{",".join([dump] * 120)}],"reply_to":7,"more":true}}'
    assert len(part) < 4 * MIB
    lines = [admitted(server, TEAM_B, f"b{number}") for number in range(3)]
    for number, line in enumerate(lines):
        line.send(announce(f"team-b/run{number}"))
        all_was_read(line)
    before = memory(server)
    for line in lines:
        for _ in range(4):
            line.send(part)
        all_was_read(line)
    grown = memory(server) - before
    for line in lines:
        line.close()
    assert grown < GROWTH_MIB
