"""Saves are recorded once each, with their path and their line, whatever comes of them."""

import errno
import gzip
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ncclwatch.contract import config  # noqa: E402 - needs torch
from ncclwatch.contract.model.rank import WaitKind  # noqa: E402
from ncclwatch.contract.ring.call_sites import parse  # noqa: E402
from ncclwatch.contract.ring.layout import SAVE_TEXT_MAX, SAVES_AT  # noqa: E402
from ncclwatch.contract.ring.reader import Ring  # noqa: E402
from ncclwatch.contract.ring.rows import SaveRow  # noqa: E402
from ncclwatch.rank.patches import save_errors, saves  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402


class Watched:
    """A recorder with torch's saves patched, and the ring as others read it."""

    def __init__(self, path: str) -> None:
        self.file = RingFile(path, rank=0, local_rank=0, world=(2, 2), attempt=0)
        self.ring = Ring(path)
        self.recorder: Recorder | None = Recorder(self.file)
        self.patches = Patches()
        saves.install(self.patches, lambda: self.recorder)

    def seen(self) -> "tuple[SaveRow, WaitKind | None]":
        """Return the newest save of the first thread and what that thread is in."""
        thread = self.ring.threads()[0]
        return self.ring.saves()[0], thread.wait.kind if thread.wait else None


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    before = torch.save
    found = Watched(str(tmp_path / "0-1.ring"))
    try:
        yield found
    finally:
        found.patches.restore()
        found.ring.close()
        assert torch.save is before
        assert torch.serialization.save is before


class Looks:
    """An object that looks at the ring while it is being saved."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.found: list[object] = []

    def __reduce__(self) -> object:
        self.found.append(self.watched.seen())
        return (str, ())


def test_a_save_is_a_wait_with_its_path_and_its_line_while_it_lasts(watched: Watched, tmp_path: Path):
    looks = Looks(watched)
    torch.save(looks, tmp_path / "model.pt")
    ((row, kind),) = looks.found
    assert (row.call, row.path, row.ended_ns, kind) == ("torch.save", str(tmp_path / "model.pt"), 0, WaitKind.SAVE)
    after, kind = watched.seen()
    assert (after.began_ns, after.error, kind) == (row.began_ns, "", None)
    assert after.ended_ns > after.began_ns


def test_the_line_is_the_users(watched: Watched, tmp_path: Path):
    found: list[str] = []

    class Model:
        def __reduce__(self) -> object:
            wait = watched.ring.threads()[0].wait
            found.append(watched.ring.string(wait.site) if wait else "")
            return (str, ())

    torch.save(Model(), tmp_path / "model.pt")
    site = parse(found[0])
    assert site is not None
    assert (Path(site.file), site.function) == (Path(__file__), "test_the_line_is_the_users")
    assert parse(watched.ring.string(watched.seen()[0].site)) == site


def test_a_save_inside_of_a_save_is_a_part_of_it(watched: Watched, tmp_path: Path):
    looks = Looks(watched)

    class Outer:
        def __reduce__(self) -> object:
            torch.save(looks, tmp_path / "inner.pt")
            looks.found.append(watched.seen())
            return (str, ())

    torch.save(Outer(), tmp_path / "outer.pt")
    assert [row.path for row, _ in looks.found] == [str(tmp_path / "outer.pt")] * 2
    assert [kind for _, kind in looks.found] == [WaitKind.SAVE] * 2


@pytest.mark.parametrize(
    ("error", "said"), [(ValueError("no"), "ValueError: no"), (KeyboardInterrupt(), "KeyboardInterrupt: ")]
)
def test_what_a_save_raises_is_raised_and_recorded(watched: Watched, tmp_path: Path, error: BaseException, said: str):
    class Broken:
        def __reduce__(self) -> object:
            raise error

    with pytest.raises(type(error)):
        torch.save(Broken(), tmp_path / "model.pt")
    row, kind = watched.seen()
    assert (row.error, kind) == (said, None)
    assert row.ended_ns


def test_what_has_a_name_has_a_path_and_what_is_in_memory_has_none(watched: Watched, tmp_path: Path):
    with open(tmp_path / "open.pt", "wb") as file:
        torch.save(1, file)
    assert watched.seen()[0].path == str(tmp_path / "open.pt")
    torch.save(1, io.BytesIO())
    assert watched.seen()[0].path == ""
    torch.save(1, f=str(tmp_path / "named.pt"))
    assert watched.seen()[0].path == str(tmp_path / "named.pt")


def test_ten_thousand_paths_take_no_more_room_than_one(watched: Watched, tmp_path: Path):
    torch.save(0, tmp_path / "0.pt")
    used = watched.ring.words()[1]
    for number in range(200):
        watched.file.set_save(0, (1, 2), 0, {"call": "torch.save", "path": f"/x/{number}"})
    assert watched.ring.words()[1] == used
    watched.file.set_save(0, (1, 2), 0, {"call": "torch.save", "path": "/\u1234" * SAVE_TEXT_MAX + "/end"})
    (row,) = watched.ring.saves()
    assert row.path.startswith("...")
    assert row.path.endswith("/end")


def test_threads_that_save_once_each_are_seen_for_ever_and_do_not_use_up_the_table(watched: Watched, tmp_path: Path):
    for number in range(40):
        thread = threading.Thread(target=torch.save, args=(number, tmp_path / f"{number}.pt"))
        thread.start()
        thread.join()
    paths = [row.path for row in watched.ring.saves()]
    assert str(tmp_path / "39.pt") in paths
    assert len(watched.ring.threads()) == config.THREADS_KEPT
    torch.save(0, tmp_path / "main.pt")
    assert str(tmp_path / "main.pt") in [row.path for row in watched.ring.saves()]


def test_a_recorder_that_fails_fails_no_save(watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(RingFile, "set_save", fails)
    torch.save(7, tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt") == 7
    watched.recorder = None
    torch.save(8, tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt") == 8


def test_a_torn_row_is_left_out(watched: Watched, tmp_path: Path):
    torch.save(0, tmp_path / "0.pt")
    at = SAVES_AT
    watched.file.memory[at : at + 8] = (99).to_bytes(8, "little")
    assert watched.ring.saves() == []


def test_attach_imports_no_checkpoint_library_and_patches_it_when_it_comes(tmp_path: Path):
    program = f"""
import sys, torch, torch.distributed
before = set(sys.modules)
import ncclwatch
ncclwatch.attach(native=False)
print(sorted(n for n in set(sys.modules) - before if n.startswith(("torch.distributed.checkpoint", "safetensors"))))
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict_saver
print(dcp.save is state_dict_saver.save, hasattr(dcp.save, "__wrapped__"), hasattr(dcp.async_save, "__wrapped__"))
from ncclwatch.contract.ring.reader import Ring
import glob
ring = Ring(glob.glob({str(tmp_path)!r} + "/ncclwatch-*/*/0-*.ring")[0])
dcp.save({{"a": torch.ones(2)}}, checkpoint_id={str(tmp_path / "ckpt")!r})
print([(row.call, row.path) for row in ring.saves()])
ncclwatch.detach()
print(dcp.save is state_dict_saver.save, torch.save is torch.serialization.save)
print([f.__globals__["__name__"] for f in (dcp.async_save, torch.save)])
"""
    environ = os.environ | {
        "RANK": "0", "WORLD_SIZE": "1", "NCCLWATCH_RUNTIME_DIR": str(tmp_path), "NCCLWATCH_AGENT": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[]",
        "True True True",
        f"[('dcp.save', '{tmp_path / 'ckpt'}')]",
        "True True",
        "['torch.distributed.checkpoint.logger', 'torch.serialization']",
    ]


def test_safetensors_are_watched_from_their_import_on_also_by_a_name_taken_early(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("")
    (tmp_path / "safetensors" / "torch.py").write_text(
        "def serialize_file(tensors, filename, metadata=None):\n"
        "    tensors()\n"
        "def save_file(tensors, filename, metadata=None):\n"
        "    serialize_file(tensors, filename, metadata=metadata)\n"
        "early = save_file\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import safetensors.torch as library

    seen: list[object] = []
    library.save_file(lambda: seen.append(watched.seen()), "/data/a.safetensors")
    library.early(lambda: seen.append(watched.seen()), filename="/data/b.safetensors")
    assert [(row.call, row.path, kind) for row, kind in seen] == [
        ("safetensors", "/data/a.safetensors", WaitKind.SAVE),
        ("safetensors", "/data/b.safetensors", WaitKind.SAVE),
    ]
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def least(watched: Watched) -> int:
    return watched.seen()[0].least_bytes


def test_the_bytes_of_what_is_saved_are_told_and_each_storage_once(watched: Watched, tmp_path: Path):
    weight = torch.nn.Parameter(torch.zeros(100))
    state = {
        "a": weight,
        "b": [weight, (torch.zeros(10, dtype=torch.float64),)],
        "step": 3,
        "view": weight.detach()[:5],
    }
    torch.save(state, tmp_path / "model.pt")
    assert least(watched) == 100 * 4 + 10 * 8
    assert (tmp_path / "model.pt").stat().st_size > least(watched)
    torch.save(obj=torch.zeros(1000)[:1], f=tmp_path / "view.pt")
    assert least(watched) == 4000
    assert (tmp_path / "view.pt").stat().st_size > 4000


def test_what_is_not_understood_is_not_counted(watched: Watched, tmp_path: Path):
    for state in (
        torch.zeros(9).as_subclass(Marked),
        torch.zeros(9, device="meta"),
        torch.eye(3).to_sparse(),
        torch.nn.Linear(3, 3),
        Words(),
    ):
        torch.save({"state": state}, tmp_path / "model.pt")
        assert least(watched) == 0
    loop: list[object] = []
    loop.append(loop)
    torch.save(loop, tmp_path / "loop.pt")
    assert least(watched) == 0


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


class Words:
    """Pickles to next to nothing, whatever it holds."""

    def __init__(self) -> None:
        self.held = torch.zeros(1000)

    def __reduce__(self) -> object:
        return (Words, ())


def test_a_file_that_packs_what_it_is_given_tells_no_size(watched: Watched, tmp_path: Path):
    with gzip.open(tmp_path / "model.pt.gz", "wb") as packed:
        torch.save(torch.zeros(1000), packed)
    assert (watched.seen()[0].path, least(watched)) == (str(tmp_path / "model.pt.gz"), 0)
    with open(tmp_path / "model.pt", "wb") as raw:
        torch.save(torch.zeros(1000), raw)
    assert least(watched) == 4000
    torch.save(torch.zeros(1000), io.BytesIO())
    assert least(watched) == 0


def told(error: BaseException, refused: int = 0) -> str:
    return save_errors.words_of(error, refused)


def test_what_torch_does_not_tell_is_added_from_the_number_of_the_refused_call():
    lost = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")
    assert told(lost, errno.EDQUOT).endswith("vs 534 ([Errno 122] Disk quota exceeded)")
    assert told(lost, errno.ENOSPC).endswith("([Errno 28] No space left on device)")
    assert told(lost, errno.EAGAIN) == told(lost) == f"RuntimeError: {lost}"
    assert told(ValueError("not of storage"), errno.EDQUOT) == "ValueError: not of storage"
    long = RuntimeError("inline_container" + "x" * 1000)
    assert len(told(long, errno.EDQUOT)) == save_errors.ERROR_CHARS_MAX
    assert told(long, errno.EDQUOT).endswith("quota exceeded)")


def test_what_an_exception_was_raised_from_is_told_and_what_was_being_handled_is_not():
    quota = OSError(errno.EDQUOT, "Disk quota exceeded")
    cause = RuntimeError("cannot save")
    cause.__cause__ = quota
    assert told(cause) == "RuntimeError: cannot save ([Errno 122] Disk quota exceeded)"
    handled = RuntimeError("cannot save")
    handled.__context__ = quota
    assert told(handled) == "RuntimeError: cannot save"
    assert told(quota) == "OSError: [Errno 122] Disk quota exceeded"


def test_of_a_sharded_save_the_first_failure_is_told_and_not_the_head_of_its_traces():
    from torch.distributed.checkpoint.api import CheckpointException

    error = CheckpointException("save", {3: (OSError(errno.EDQUOT, "Disk quota exceeded"), None)})
    assert told(error) == "OSError: [Errno 122] Disk quota exceeded"
    assert told(CheckpointException("save", {})).startswith("CheckpointException: ")


def test_the_number_is_of_this_save_and_not_of_an_earlier_call():
    with pytest.raises(FileNotFoundError):
        Path("/nowhere/at/all").stat()
    assert save_errors.last_errno() == errno.ENOENT
    save_errors.clear_errno()
    assert save_errors.last_errno() == 0


def test_a_call_that_was_refused_before_a_save_is_no_reason_for_its_failure(watched: Watched, tmp_path: Path):
    class Broken:
        def __reduce__(self) -> object:
            found.append(save_errors.last_errno())
            raise RuntimeError("inline_container.cc: of its own")

    found: list[int] = []
    with pytest.raises(FileNotFoundError):
        Path("/nowhere/at/all").stat()
    with pytest.raises(RuntimeError):
        torch.save(Broken(), io.BytesIO())
    assert errno.ENOENT not in found
    assert watched.seen()[0].error == "RuntimeError: inline_container.cc: of its own"
