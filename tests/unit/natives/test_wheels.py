"""Parts of a wheel are fetched from a server, and no more than these."""

import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from natives import wheels
from ncclwatch.native.build import NativeError


class Server(BaseHTTPRequestHandler):
    """Sends parts of one file, as an index of packages does."""

    content = b""
    asked: list[range]
    sends_parts = True

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.asked.append(range(first, last + 1))
        part = self.content[first : last + 1] if self.sends_parts else self.content
        self.send_response(206 if self.sends_parts else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[wheels.Found]:
    """A wheel behind a server: two headers side by side, a large library, a third header."""
    path = tmp_path / "torch-2.9.1.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("include/a.h", "include/b.h"):
            archive.writestr(f"torch/{name}", f"// {name}")
        archive.writestr("torch/lib/large.so", bytes(200_000))
        archive.writestr("torch/include/c.h", "// c")
    monkeypatch.setattr(Server, "content", path.read_bytes())
    monkeypatch.setattr(Server, "asked", [], raising=False)
    monkeypatch.setattr(wheels, "_DIRECTORY_BYTES", 1000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield wheels.Found("2.9.1", f"http://127.0.0.1:{server.server_port}/torch.whl")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def is_header(name: str) -> bool:
    return name.startswith("torch/include/")


def test_what_is_wanted_is_extracted_and_what_lies_between_is_not_fetched(wheel: wheels.Found, tmp_path: Path):
    wheels.extract(wheel, is_header, tmp_path / "into")
    found = {path.name: path.read_text() for path in (tmp_path / "into").rglob("*.*")}
    assert found == {"a.h": "// include/a.h", "b.h": "// include/b.h", "c.h": "// c"}
    assert len(Server.asked) == 3  # the list, two headers at once, one more
    assert sum(map(len, Server.asked)) < 2000


def test_a_server_that_sends_whole_files_only_is_told(
    wheel: wheels.Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Server, "sends_parts", False)
    with pytest.raises(OSError, match="sends whole files only"):
        wheels.extract(wheel, is_header, tmp_path / "into")


def test_a_wheel_on_this_disk_is_opened_as_it_is(tmp_path: Path):
    path = tmp_path / "torch-2.9.1+cpu.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch/include/a.h", "// a")
        archive.writestr("torch/lib/large.so", b"")
    wheels.extract(wheels.Found("2.9.1", path.as_uri()), is_header, tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").rglob("*.*")] == ["a.h"]


def test_where_pip_finds_no_wheel_its_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NativeError, match=r"pip finds no wheel of torch==2\.99\.\*: .+"):
        wheels.find("torch==2.99.*")
