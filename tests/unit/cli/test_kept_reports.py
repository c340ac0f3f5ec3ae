"""Reports of hangs are kept where nobody named a file: the newest ones, for their owner alone."""

import os
from pathlib import Path

from ncclwatch.cli.output.kept_reports import KEPT_MAX, keep


def test_a_report_is_kept_for_its_owner_and_old_ones_go(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for number in range(KEPT_MAX + 3):
        path = keep(f"job-{number}", b"{}", environ)
        os.utime(path, (number, number))
    kept = sorted((tmp_path / "ncclwatch/reports").iterdir())
    assert len(kept) == KEPT_MAX
    assert not (tmp_path / "ncclwatch/reports/job-0.json").exists()
    assert path.read_bytes() == b"{}"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_name_of_a_job_is_no_path(tmp_path: Path) -> None:
    path = keep("../../team/job", b"{}", {"XDG_STATE_HOME": str(tmp_path)})
    assert path.parent == tmp_path / "ncclwatch/reports"
