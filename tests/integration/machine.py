"""A machine of its own for a test: a network namespace, in which the real default port is free, and other users."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import psutil
import pytest

ROOT = Path(__file__).parents[2]
ALICE, MALLORY = 12_301, 12_302
_CLONE_NEWNET, _CLONE_NEWUTS, _CLONE_NEWNS, _CLONE_NEWTIME = 0x40000000, 0x04000000, 0x00020000, 0x00000080
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_HOLDER = "import sys; from tests.integration import machine; machine.hold(*sys.argv[1:])"


class Machine:
    """Runs programs in one network namespace, as a host of some name. What still runs is killed at the end.

    With a file of `hosts`, which it has as /etc/hosts, it also has a /dev/shm of its own. It was started `up_s` seconds
    before this machine was: its monotonic clocks are ahead by so much.
    """

    def __init__(self, host: str = "", hosts: Path | None = None, *, up_s: int = 0) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, host, str(hosts or ""), str(up_s)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        self.pid = holder.pid
        self.net = f"/proc/{holder.pid}/ns/net"
        self._enter = ["nsenter", f"--net={self.net}", f"--uts=/proc/{holder.pid}/ns/uts"]
        if hosts is not None:
            self._enter += [f"--mount=/proc/{holder.pid}/ns/mnt", f"--wd={ROOT}"]
        if up_s:
            self._enter.append(f"--time=/proc/{holder.pid}/ns/time_for_children")

    def start(self, *command: str, **environ: str) -> "subprocess.Popen[str]":
        """Start a program of Python here, with these variables of ours alone."""
        return self.execute(sys.executable, *command, **environ)

    def execute(self, *command: str, **environ: str) -> "subprocess.Popen[str]":
        """Start any program here in the same way."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH", "TORCHELASTIC", "RANK"))}
        process = subprocess.Popen(
            [*self._enter, *command], cwd=ROOT, env=inherited | environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def other_user(self, uid: int, what: str, *arguments: str) -> "subprocess.Popen[str]":
        """Let another user listen here, and return when that is so."""
        process = self.start("-m", "tests.integration.other_user", str(uid), what, *arguments)
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    def wire_to(self, other: "Machine", ours: str, theirs: str) -> None:
        """Lay a cable to another machine, with an address at each end."""
        enter = ["nsenter", f"--net={self.net}", "ip"]
        subprocess.run(
            [*enter, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(other.pid)],
            check=True,
        )
        for machine, address in ((self, ours), (other, theirs)):
            enter = ["nsenter", f"--net={machine.net}", "ip"]
            subprocess.run([*enter, "address", "add", f"{address}/24", "dev", "cable"], check=True)
            subprocess.run([*enter, "link", "set", "cable", "up"], check=True)

    def ends(self, *command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of Python here to its end."""
        process = self.start(*command, **environ)
        out, err = process.communicate(timeout=140)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def inhabitants(self) -> list[psutil.Process]:
        """Return all processes that are here, but for the one that keeps the namespaces."""
        space, found = Path(self.net).stat().st_ino, []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != self.pid and Path(f"/proc/{process.pid}/ns/net").stat().st_ino == space:
                    found.append(process)
        return found

    def __enter__(self) -> "Machine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def needs_root() -> None:
    """Skip a test where there is no second user."""
    if os.geteuid() or shutil.which("nsenter") is None:
        pytest.skip("needs root, and nsenter of util-linux, for a second user and a network of its own")


def hold(host: str = "", hosts: str = "", up_s: str = "0") -> None:
    """Make a network namespace with a loopback device that is up, and keep it until standard input ends."""
    spaces = _CLONE_NEWNET | _CLONE_NEWUTS | (_CLONE_NEWNS if hosts else 0) | (_CLONE_NEWTIME if int(up_s) else 0)
    if ctypes.CDLL(None, use_errno=True).unshare(spaces):
        raise OSError(ctypes.get_errno(), "unshare")
    if int(up_s):  # before there is any child
        Path("/proc/self/timens_offsets").write_text(f"monotonic {up_s} 0\nboottime {up_s} 0\n")
    if hosts:
        for words in (
            ["--make-rprivate", "/"], ["-t", "tmpfs", "tmpfs", "/dev/shm"], ["--bind", hosts, "/etc/hosts"],
        ):  # fmt: skip
            subprocess.run(["mount", *words], check=True)
    if host:
        socket.sethostname(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        wanted = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, wanted))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))
    print("ready", flush=True)
    sys.stdin.read()
