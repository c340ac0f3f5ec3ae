"""Checks whether this environment's torch is recorded, by which recorder, and with which second witness."""

import os
import sys
from collections.abc import Mapping

from ncclwatch.cli.doctor.check import Check, failed, passed, warned
from ncclwatch.contract import config
from ncclwatch.contract.version import TORCH_NEWEST, TORCH_OLDEST, VERSION
from ncclwatch.native import fitness, loading
from ncclwatch.native.build import NativeError


def versions() -> Check:
    """Say what this is."""
    return passed("ncclwatch", f"{VERSION}, Python {sys.version.split()[0]} at {sys.executable}")


def framework() -> Check:
    """Look at the torch of this environment."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return failed("torch", f"cannot be imported here: {error}", "run `ncclwatch doctor` in training's environment")
    return judged_torch(str(torch.__version__), available=dist.is_available())


def judged_torch(version: str, *, available: bool) -> Check:
    """Say whether a version of torch is recorded."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    oldest, newest = (".".join(map(str, each)) for each in (TORCH_OLDEST, TORCH_NEWEST))
    if not available:
        return failed(
            "torch",
            f"{version} was built without torch.distributed: there is nothing to watch",
            "install a build of torch with distributed support",
        )
    if numbers < TORCH_OLDEST:
        return failed(
            "torch",
            f"{version} is older than {oldest}, the oldest that ncclwatch records: attach() does nothing",
            f"install torch {oldest} or newer, or set {config.ENV_ANY_TORCH}=1 and try a short job first",
        )
    if numbers > TORCH_NEWEST:
        return warned(
            "torch", f"{version}; ncclwatch was tried with {oldest} to {newest}", "try a short job first, and compare"
        )
    return passed("torch", version)


def native_recorder() -> Check:
    """Look for the native recorder."""
    name, fix = "native recorder", "run `ncclwatch build-native` once; recording then costs a fraction"
    try:
        if loading.load() is not None:
            return passed(name, str(loading.where()))
        unfit = fitness.trouble()
        alone = loading.load_alone()
    except (ImportError, NativeError) as error:
        return warned(name, f"{error}. The recorder in Python is used", fix)
    if unfit:
        return warned(
            name, f"{unfit}; the recorder in Python is used", "use a release of CPython with a GIL and of torch"
        )
    way = "" if alone is None else ", with its hot path in C"
    return warned(name, f"not built for this torch; the recorder in Python is used{way}", fix)


def second_witness(environ: Mapping[str, str] = os.environ) -> Check:
    """Look whether torch's Flight Recorder can be asked for what a rank that holds the GIL has issued."""
    name = "second witness"
    for variable, value in ((config.ENV_WITNESS, "0"), ("TORCH_FR_BUFFER_SIZE", "0")):
        if environ.get(variable) == value:
            return warned(name, f"{variable}={value} turns torch's Flight Recorder off", f"unset {variable}")
    try:
        from torch._C import _distributed_c10d
    except ImportError:
        return warned(name, "this torch has no torch.distributed", "install a build of torch with distributed support")
    if not hasattr(_distributed_c10d, "_WorkerServer"):
        return warned(name, "this torch has no worker server; verdicts rest on ncclwatch alone", "use a newer torch")
    own = environ.get("TORCH_WORKER_SERVER_SOCKET")
    where = f"your own worker server at {own}" if own else f"a unix socket in {config.runtime_dir()}"
    return passed(name, f"torch's Flight Recorder, through {where}")
