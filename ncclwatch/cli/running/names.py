"""Names the job of a command that `ncclwatch run` starts, and says whether the command starts only a part of it."""

import os
import time
from collections.abc import Mapping, Sequence

from ncclwatch.contract import config, job_names


def name_of(command: Sequence[str], server: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of a job: the one that somebody gave it, or one that people recognise.

    With a server that other nodes may use as well, each of them runs this beside its own launcher. Then the name comes
    from what the launchers share, as the ranks would take it from there.
    """
    named = environ.get(config.ENV_JOB, "").strip()
    if not named and server:
        named = _shared(command, environ)
    return job_names.in_namespace(named or _fresh(command), environ)


def is_part(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether ranks of the job may run where this process starts none: other launchers, tasks beside this one."""
    if any(_number(environ, name) > 1 for name in _TASKS):
        return True
    launcher = os.path.basename(command[0])  # noqa: PTH119
    if launcher == "srun":
        return max(_number(environ, name) for name in _NODES) > 1
    if launcher in _OF_MPI:
        return not _HOSTS.isdisjoint(part.partition("=")[0] for part in command)
    return _option(command, "nnodes", environ) not in ("", "1", "1:1")


_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # of the step or run that this process is in
_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_OF_MPI = ("mpirun", "mpiexec", "mpiexec.hydra")
_HOSTS = frozenset(
    ("-H", "-host", "--host", "-hosts", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f")
)


def _number(environ: Mapping[str, str], name: str) -> int:
    said = environ.get(name, "")
    return int(said) if said.isdigit() else 0


def _fresh(command: Sequence[str]) -> str:
    """Return a name with the script, the time, this process."""
    script = next((part for part in command if part.endswith(".py")), command[0])
    stem = os.path.basename(script).removesuffix(".py")  # noqa: PTH119
    return f"{stem[:40]}-{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"


def _shared(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what the launchers of all nodes say of their job, "" if it runs on this node alone."""
    if environ.get("SLURM_JOB_ID"):
        return job_names.from_environment(environ)
    if _option(command, "nnodes", environ) in ("", "1", "1:1"):
        return ""
    run_id = _option(command, "rdzv-id", environ)
    if run_id not in ("", "none"):
        return run_id
    endpoint = _option(command, "rdzv-endpoint", environ)
    if not endpoint:
        endpoint = f"{_option(command, 'master-addr', environ)}:{_option(command, 'master-port', environ) or '29500'}"
    return endpoint.replace(":", "-")


def _option(command: Sequence[str], name: str, environ: Mapping[str, str]) -> str:
    """Return an option of torchrun: `--name X`, `--name=X`, the same with `_`, or PET_NAME. "" if it is not there."""
    spellings = (f"--{name}", f"--{name.replace('-', '_')}")
    for part, following in zip(command, (*command[1:], ""), strict=True):
        option, equals, value = part.partition("=")
        if option in spellings:
            return value if equals else following
        if part.endswith(".py"):  # what follows is the script's
            break
    return environ.get(f"PET_{name.replace('-', '_').upper()}", "")
