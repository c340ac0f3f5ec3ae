"""A real Slurm cluster: one controller, and a slurmd on each of several machines with networks of their own."""

import contextlib
import shutil
import tempfile
from pathlib import Path
from subprocess import Popen
from types import TracebackType

import psutil
import pytest

from tests.integration.machine import ROOT, Machine, needs_root
from tests.integration.network import Network
from tests.integration.real_jobs import until

_PROLOG = ROOT / "deploy/slurm/task-prolog.sh"
_TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")
# After the example of slurm.conf(5): without systemd, cgroups and accounting.
_CONFIG = """
ClusterName=test
SlurmctldHost=node0(10.92.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={run}/munge.sock,cred_expire=5
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool.%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=300
KillWait=5
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
TaskProlog={prolog}
{nodes}
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Slurm:
    """A cluster of nodes, called node0, node1 and so on. The controller and the users are on the first."""

    def __init__(self, nodes: int) -> None:
        needs_root()
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"needs Slurm: {', '.join(missing)} of Debian's slurmctld, slurmd, slurm-client and munge")
        self._stack = contextlib.ExitStack()
        # Not below /dev/shm, of which each node has its own.
        self.run = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        self.run.chmod(0o755)
        (self.run / "state").mkdir()
        hosts = self.run / "hosts"
        hosts.write_text(
            "127.0.0.1 localhost\n" + "".join(f"10.92.0.{n + 1} node{n}\n" for n in range(nodes))
        )  # fmt: skip
        self.network = self._stack.enter_context(Network())
        self.nodes = [self._stack.enter_context(Machine(f"node{n}", hosts)) for n in range(nodes)]
        for node in self.nodes:
            self.network.join(node)
        self._begin()

    def _begin(self) -> None:
        described = "".join(
            f"NodeName=node{n} NodeAddr=10.92.0.{n + 1} CPUs=4 RealMemory=1000 State=UNKNOWN\n"
            for n in range(len(self.nodes))
        )
        (self.run / "slurm.conf").write_text(_CONFIG.format(run=self.run, nodes=described, prolog=_PROLOG))
        key = self.run / "munge.key"
        key.write_bytes(b"k" * 1024)
        key.chmod(0o600)
        files = {"key-file": key, "socket": self.run / "munge.sock", "pid-file": self.run / "munge.pid"}
        named = [f"--{name}={path}" for name, path in files.items()]
        log = f"--log-file={self.run}/munge.log"
        self.nodes[0].execute("munged", "--foreground", "--force", f"--seed-file={self.run}/munge.seed", log, *named)
        until((self.run / "munge.sock").exists)
        self.nodes[0].execute("slurmctld", "-D", "-i", "-f", f"{self.run}/slurm.conf")
        for n, node in enumerate(self.nodes):
            node.execute("slurmd", "-D", "-N", f"node{n}", "-f", f"{self.run}/slurm.conf")
        until(self._is_up, lambda: self._logs())

    def _is_up(self) -> bool:
        states = self.command("sinfo", "-h", "-N", "-o", "%t").split()
        return states == ["idle"] * len(self.nodes)

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.run.glob("*.log"))

    def agents(self) -> list[int]:
        """Return the processes of ncclwatch on all nodes."""
        found = []
        for node in self.nodes:
            for process in node.inhabitants():
                with contextlib.suppress(psutil.Error):
                    if any(word.startswith("ncclwatch_") for word in process.cmdline()):
                        found.append(process.pid)
        return found

    def command(self, *words: str) -> str:
        """Return what a command of Slurm says, "" if it fails."""
        process = self.start(*words)
        out, _ = process.communicate(timeout=60)
        return out if process.returncode == 0 else ""

    def start(self, *words: str, **environ: str) -> "Popen[str]":
        """Start a command of Slurm on the first node."""
        return self.nodes[0].execute(*words, SLURM_CONF=f"{self.run}/slurm.conf", **environ)

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            for process in node.inhabitants():
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._stack.close()
