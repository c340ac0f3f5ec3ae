"""attach() is a good guest: it restores what it replaced, steps aside in children, and never stops training."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.machine.private_dirs import IN_MEMORY, filesystem_of
from tests.integration.launch import PROGRAMS, environment, run_ranks, started
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
CHECKS = 13


def test_every_check_inside_a_real_job_holds(tmp_path: Path):
    ranks = run_ranks("manners.py", 2, tmp_path, begin=started)
    for rank in ranks:
        assert rank.code == 0, rank.out + rank.err
        assert rank.out.count("ok ") == CHECKS
        assert "ncclwatch:" not in rank.err


def test_importing_ncclwatch_imports_the_standard_library_alone():
    code = (
        "import sys, ncclwatch; own = {n for n in sys.modules if n.split('.')[0] not in sys.stdlib_module_names};"
        "import threading; print(sorted(n for n in own if not n.startswith(('__', 'ncclwatch', '_'))),"
        "threading.active_count())"
    )
    found = subprocess.run([sys.executable, "-I", "-S", "-c", _with_path(code)], capture_output=True, text=True)
    assert found.stdout.strip() == "[] 1", found.stderr


def _with_path(code: str) -> str:
    return f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); {code}"


@pytest.fixture
def full_tmpfs(tmp_path: Path):
    place = tmp_path / "shm"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def read_only_tmpfs(full_tmpfs: Path):
    subprocess.run(["mount", "-o", "remount,ro", str(full_tmpfs)], check=True)
    return full_tmpfs


@pytest.mark.parametrize("place", ["full_tmpfs", "read_only_tmpfs"])
def test_without_room_for_a_ring_training_goes_on_after_one_warning(place: str, request: pytest.FixtureRequest):
    runtime = request.getfixturevalue(place)
    ranks = run_ranks("plain.py", 2, runtime)
    for rank in ranks:
        assert rank.code == 0, rank.err
        assert rank.out.startswith("done ")
        assert rank.err.count("ncclwatch:") == 1, rank.err
        assert "NCCLWATCH_RUNTIME_DIR" in rank.err
        assert "training goes on" in rank.err


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        fd = os.open(name, os.O_RDONLY)
        found = filesystem_of(fd)
        os.close(fd)
        if found in IN_MEMORY:
            pytest.skip("all of this machine lies in memory")
        yield Path(name)


def test_rings_are_not_written_to_a_disk(disk: Path):
    (rank,) = run_ranks("plain.py", 1, disk)
    assert rank.code == 0, rank.err
    assert rank.err.count("ncclwatch:") == 1, rank.err
    assert "Rings need memory (tmpfs)" in rank.err and "training goes on" in rank.err
    assert [path for path in disk.rglob("*") if path.is_file()] == []


def test_without_proc_a_rank_says_what_is_missing_and_leaves_no_file(tmp_path: Path):
    hidden = f"mount -t tmpfs none /proc && exec {sys.executable} {PROGRAMS / 'plain.py'}"
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden], env=environment(tmp_path, **place), capture_output=True, text=True
    )
    if "unshare" in done.stderr:
        pytest.skip("hiding /proc needs root")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ncclwatch:") == 1, done.stderr
    assert "Mount /proc" in done.stderr and "training goes on" in done.stderr and "space" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_users_filter_that_makes_warnings_errors_does_not_stop_training(full_tmpfs: Path):
    ranks = run_ranks("plain.py", 1, full_tmpfs, begin=started, PYTHONWARNINGS="error::RuntimeWarning")
    assert ranks[0].code == 0, ranks[0].err


def test_disabled_by_the_environment_it_leaves_no_trace(tmp_path: Path):
    ranks = run_ranks("plain.py", 2, tmp_path, NCCLWATCH_DISABLE="1")
    assert [rank.code for rank in ranks] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_watched_and_unwatched_training_compute_the_same(tmp_path: Path):
    watched = run_ranks("plain.py", 2, tmp_path / "a", "ddp")
    unwatched = run_ranks("plain.py", 2, tmp_path / "b", "ddp", NCCLWATCH_DISABLE="1")
    assert [rank.out for rank in watched] == [rank.out for rank in unwatched]


def test_no_thread_of_ours_lives_when_the_interpreter_ends(tmp_path: Path):
    """Python unwinds such a thread when it comes back from native code, and torch answers that with SIGABRT."""
    for rank in run_ranks("ends.py", 2, tmp_path, begin=started):
        assert (rank.code, rank.out.splitlines()) == (0, ["['ncclwatch-pulse']", "[]"]), rank.err


def test_a_rank_that_closes_all_descriptors_lives_on_and_keeps_its_own_files(tmp_path: Path):
    (tmp_path / "files").mkdir()
    (rank,) = run_ranks("descriptors.py", 1, tmp_path, str(tmp_path / "files"), begin=started)
    assert rank.code == 0, rank.err
    assert rank.out == "nobody can ask\nfiles written 40\n"


def test_a_rank_whose_working_directory_was_removed_is_watched(tmp_path: Path):
    code = (
        "import os, tempfile, torch; place = tempfile.mkdtemp(); os.chdir(place); os.rmdir(place); import ncclwatch;"
        "ncclwatch.attach(); from ncclwatch.rank import attach; print(attach.current() is not None)"
    )
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    found = subprocess.run(
        [sys.executable, "-c", _with_path(code)], env=environment(tmp_path, **place), capture_output=True, text=True
    )
    assert found.stdout == "True\n", found.stderr
