"""A real job whose rank 0 validates for long: told of as unusual and before the timeout, and never as a hang."""

import time
from pathlib import Path

import pytest

from ncclwatch.contract.model.phases import Phase
from ncclwatch_server.store.incident_store import Store
from tests.integration.real_jobs import incidents, runtime, server, torchrun
from tests.ports import free_port

__all__ = ["runtime"]

RUN_S_MAX = 130.0  # 27 s, and the start of torch on a machine that has other work

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.mark.long
def test_a_long_validation_is_warned_of_twice_and_its_job_ends_well(runtime: Path, tmp_path: Path):
    port = free_port()
    url, store = f"http://127.0.0.1:{port}", tmp_path / "incidents.db"
    head = server(port, store)
    # The first validation of 3 s teaches; the second lasts beyond half of the timeout of 30 s.
    job = torchrun(runtime, "late.py", 2, "30", "3", "18", NCCLWATCH_SERVER=url, NCCLWATCH_JOB="late")
    try:
        seen: list[str] = []
        places: set[str] = set()

        deadline = time.monotonic() + RUN_S_MAX
        while job.poll() is None and time.monotonic() < deadline:
            for incident in incidents(url):
                seen.append(f"{incident['severity']} {incident['lateness']}")
                places.add(str(incident["culprits"][0]["call_site"]["function"]))
            time.sleep(0.1)
        assert job.poll() is not None, "the job has not ended"
        out, err = job.communicate()
        assert job.returncode == 0, err
        assert out.count("trained to the end") == 2
        assert list(dict.fromkeys(seen)) == ["warning unusual", "warning deadline"]
        assert places == {"validate"}
        assert err.count("ncclwatch: WARNING waiting for rank 0: validate() late.py:") == 2
        assert err.count("ncclwatch: ") == 2
        (incident,) = incidents(url)
        assert incident["state"] == "resolved"
    finally:
        job.kill()
        head.terminate()
        head.wait()
    with Store(f"sqlite:///{store}") as kept:
        (lesson,) = [lesson for lesson in kept.lessons()["late"] if lesson.kind.phase is Phase.VALIDATION]
    assert lesson.waits == 2
    assert 2.0 < lesson.durations_s[0] < 15.0 < lesson.durations_s[1] < 30.0
