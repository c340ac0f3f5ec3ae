"""How the throttling of a control group is read for several ranks."""

from pathlib import Path

import pytest

from ncclwatch_agent.process import quota
from ncclwatch_agent.process.quota import LOOK_S, CpuQuota

S = 1_000_000_000


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The statistics of the control group in which all processes are."""
    path = tmp_path / "cpu.stat"
    path.write_text("nr_throttled 3\nthrottled_usec 5000\n")
    monkeypatch.setattr(quota, "quota_files", lambda _: (str(tmp_path / "none"), str(path)))
    return path


def test_one_look_at_a_control_group_serves_all_ranks_in_it(told: Path):
    one, other = CpuQuota(1), CpuQuota(2)
    one.look(10 * S)
    assert (one.throttled_ms, other.throttled_ms) == (5, 5)
    told.write_text("throttled_usec 9000\n")
    other.look(10 * S + 1)
    assert other.throttled_ms == 5, "it was read a moment ago"
    one.look(int((10 + LOOK_S) * S))
    assert other.throttled_ms == 9
    one.close()
    other.look(20 * S)
    other.close()


def test_a_control_group_that_nobody_is_in_any_more_is_read_anew(told: Path):
    CpuQuota(1).close()
    told.write_text("throttled_usec 9000\n")
    later = CpuQuota(2)
    later.look(10 * S)
    assert later.throttled_ms == 9
    later.close()


def test_a_process_of_which_no_quota_is_told_has_lost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quota, "quota_files", lambda _: (str(tmp_path / "none"),))
    alone = CpuQuota(1)
    alone.look(10 * S)
    assert alone.throttled_ms == 0
    alone.close()
