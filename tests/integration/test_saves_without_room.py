"""Saves on a file system that is too small, and under quotas: told before they fail, and by the right name.

The small file system is a real one (a tmpfs in namespaces of its own). So is the quota of a btrfs subvolume, where this
machine can make one; few containers can. Where it cannot, a shim stands for it that answers as a kernel does.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
PROGRAM = Path(__file__).parent / "programs" / "saves_without_room.py"
MEBIBYTE = 1 << 20
QUOTA_MIB = 3  # more than the first save, less than the second
Told = dict[str, dict[str, object]]  # by when it was told


def saved(command: list[str], **environ: str) -> Told:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, **environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {str(line["when"]): line for line in lines}


def in_a_mount(mount: str, there: Path, directory: Path, ring: Path) -> list[str]:
    """Return a command that mounts something for the program alone: it is gone when the program is."""
    program = f'exec "{sys.executable}" "{PROGRAM}" "{directory}" "{ring}"'
    flags = ["--mount"] if os.getuid() == 0 else ["--user", "--map-root-user", "--mount"]
    return ["unshare", *flags, "--propagation", "private", "sh", "-ec", f'{mount} "{there}"; {program}']


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "place"
    found.mkdir()
    return found


def test_that_there_is_no_room_is_told_at_the_first_save_and_before_the_second_has_failed(place: Path, tmp_path: Path):
    mount = f"mount -t tmpfs -o size={MEBIBYTE} small"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*in_a_mount(mount, place, place, tmp_path)[:-1], "true"]).returncode
    ):
        pytest.skip("nobody may mount here")
    told = saved(in_a_mount(mount, place, place, tmp_path / "0-1.ring"))
    first, during, after = told["first"], told["under way"], told["failed: False"]
    assert 600 * 1024 <= first["total"] < MEBIBYTE
    assert first["lacks"] == first["total"] - first["free"] > 0
    assert during["total"] == 4000 * 1024
    assert during["lacks"] > 3 * MEBIBYTE
    assert (first["trouble"], during["trouble"], first["error"], during["error"]) == (True, True, "", "")
    assert after["refused"] == "its file system is full"
    assert "unexpected pos" in str(after["error"])
    assert str(after["error"]).endswith("([Errno 28] No space left on device)")


def test_who_is_over_quota_is_told_so_although_there_is_room(place: Path, tmp_path: Path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    shim = tmp_path / "quota.so"
    source = Path(__file__).parent / "quota" / "shim.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"], check=True, timeout=60)
    command = [sys.executable, str(PROGRAM), str(place), str(tmp_path / "0-1.ring")]
    told = saved(command, LD_PRELOAD=str(shim), QUOTA_DIRECTORY=str(place), QUOTA_BYTES=str(QUOTA_MIB * MEBIBYTE))
    assert_over_quota(told)


def test_who_is_over_the_quota_of_a_real_file_system_is_told_so(place: Path, tmp_path: Path):
    if os.getuid() or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root and mkfs.btrfs")
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(128 * MEBIBYTE)
    subprocess.run(["mkfs.btrfs", "-q", "--mixed", str(image)], check=True, timeout=60)
    below = place / "limited"
    quota = f'{{ mount -o loop "{image}" "$1" && btrfs -q quota enable "$1" && btrfs -q subvolume create "{below}" '
    quota += f'&& btrfs -q qgroup limit {QUOTA_MIB}m "{below}"; }} || exit 77; }}; mounted'
    command = in_a_mount(f"mounted() {{ {quota}", place, below, tmp_path / "0-1.ring")
    if subprocess.run([*command[:-1], command[-1].partition("exec ")[0]], timeout=60).returncode == 77:
        pytest.skip("no loop mount or no quota of btrfs here")
    subprocess.run(["mkfs.btrfs", "-q", "-f", "--mixed", str(image)], check=True, timeout=60)
    assert_over_quota(saved(command))


def assert_over_quota(told: Told) -> None:
    after = told["failed: False"]
    assert after["refused"] == ""
    assert after["free"] > 20 * MEBIBYTE
    assert "unexpected pos" in str(after["error"])
    assert str(after["error"]).endswith("([Errno 122] Disk quota exceeded)")
    assert [told[when]["lacks"] for when in ("first", "under way")] == [0, 0]
