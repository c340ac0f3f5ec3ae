"""Some scenarios as real jobs: the program is made out of the text, and real ranks play it."""

import subprocess
from pathlib import Path

import pytest

from ncclwatch.contract.words.text import rank_list
from tests.integration.real_jobs import agent_environment, end, incidents, runtime, server, until
from tests.ports import free_port
from tests.scenarios.played import program
from tests.scenarios.texts import FILES, read
from tests.zoo.forking.torch_once import forking_torchrun

__all__ = ["runtime"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]
LIVE = [path for path in FILES if read(path)[0].live]


@pytest.mark.parametrize("path", LIVE, ids=lambda path: path.stem)
def test_real_ranks_are_told_the_same_cause_and_culprits(path: Path, runtime: Path, tmp_path: Path):
    situation, expected = read(path)
    script = tmp_path / "train.py"
    script.write_text(program(situation.snapshot()))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    watching = server(port, tmp_path / "incidents.db")
    job = subprocess.Popen(
        forking_torchrun(script, situation.world),
        env=agent_environment(runtime, NCCLWATCH_SERVER=url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        found = until(lambda: incidents(url))[0]
    finally:
        watching.kill()
        watching.wait()
        end(job, runtime)
    words = expected.split()
    assert found["cause"] == words[2]
    assert [f"culprits={ranks_of(found)}"] == [word for word in words[:6] if word.startswith("culprits=")]


def test_there_are_scenarios_that_are_played():
    assert len(LIVE) >= 4


def ranks_of(incident: dict) -> str:
    return rank_list(each["rank"] for each in incident["culprits"])
