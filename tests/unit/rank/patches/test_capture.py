"""Captures of CUDA graphs are counted from before they begin until after they end, whatever comes of them."""

import pytest

torch = pytest.importorskip("torch")

from ncclwatch.rank.patches import capture  # noqa: E402 - needs torch
from ncclwatch.rank.patches.patching import Patches  # noqa: E402


class Books:
    captures = 0


def test_a_capture_is_counted_while_it_lasts_and_torch_is_restored(monkeypatch: pytest.MonkeyPatch):
    books, seen = Books(), []

    class Graph:
        def capture_begin(self, fails: bool = False) -> None:
            seen.append(books.captures)
            if fails:
                raise RuntimeError("no capture")

        def capture_end(self) -> None:
            seen.append(books.captures)

    originals = dict(vars(Graph))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    patches = Patches()
    capture.install(patches, lambda: books)
    Graph().capture_begin()
    Graph().capture_end()
    with pytest.raises(RuntimeError):
        Graph().capture_begin(fails=True)
    patches.restore()
    assert (seen, books.captures) == ([1, 1, 1], 0)
    assert dict(vars(Graph)) == originals
