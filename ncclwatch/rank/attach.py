"""Attaches: patches torch, opens the ring, starts the pulse. And takes all of it back.

One state for the process: off, armed (patched, but the rank's number is not known yet) or
recording. A forked child of one that is armed or records is armed: DataLoader workers are not ranks, and never call
init_process_group; a child that calls it is one.
"""

import errno
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from types import ModuleType

from ncclwatch.contract import config, job_labels, job_names
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.machine.boot import host_name, pid_namespace
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.network.places import may_span
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.words.printable import harmless
from ncclwatch.rank import endings, identity, torch_versions, worker_server
from ncclwatch.rank.agents import store_exchange
from ncclwatch.rank.checks import resume
from ncclwatch.rank.notices import exit_signal, listener
from ncclwatch.rank.patches import collector
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.pulse import Pulse
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile, place_of_rings
from ncclwatch.rank.where.handlers import raised_by_handler

WITHOUT_TORCH = "without-torch"  # as `native`: only the hot path that knows no torch, to try it where both fit

_recorder: Recorder | None = None
_patches: Patches | None = None
_pulse: Pulse | None = None
_exchange: store_exchange.Exchange | None = None
_NOWHERE: Mapping[str, str] = {}
_changing = threading.RLock()
_said: set[str] = set()  # subjects of the warnings so far
_fork_watched = False
_place = (0, 0)  # rank and world size of the newest ring
_parents: RingFile | None = None  # the ring of the parent, in a forked child that has none yet
_native: ModuleType | None = None  # the native recorder, if it is used
_hot: ModuleType | None = None  # the hot path of the recorder in Python, if it is used
_wishes: dict[str, str] = {}  # arguments of attach(); the environment of the job overrides them
_begun = 0  # rings this process has begun: attach() after detach() begins another


def current() -> Recorder | None:
    """Return the recorder of this process, None when off."""
    return _recorder


def attach(native: bool | str = "auto", on_hang: str = "", notes: bool = False) -> None:
    """Begin recording. See `ncclwatch.attach`."""
    global _wishes
    with _changing:
        if _patches is not None or os.environ.get(config.ENV_DISABLE) == "1" or _is_helper():
            return
        try:
            trouble = torch_versions.too_old()
            if trouble:
                warn(trouble)
            else:
                _wishes = listener.wanted(on_hang, notes, warn)
                _attach(native)
        except Exception as error:
            if raised_by_handler(error):
                raise
            warn(f"not watching this rank: {type(error).__name__}: {error}. Training goes on without ncclwatch.")


def _attach(native: bool | str) -> None:
    global _patches, _fork_watched, _native, _hot
    # Imported here: `import ncclwatch` must not import torch.
    from ncclwatch.rank.patches import (
        batches,
        capture,
        chosen_device,
        collectives,
        compilers,
        file_locks,
        lifecycle,
        models,
        names,
        rng,
        rpc,
        saves,
        training,
    )

    patches = Patches()

    def current() -> Recorder | None:
        """Return the recorder while these patches are on: a wrapper that somebody still holds later is dead."""
        return _recorder if _patches is patches else None

    _native = _load_native(native)
    _hot = _load_hot(native) if _native is None else None
    try:
        collectives.install(patches, current, _native, _hot)
        lifecycle.install(patches, current, _begin_if_rank)
        training.install(patches, current)
        batches.install(patches, current)
        capture.install(patches, current)
        names.install(patches, current)
        models.install(patches, current)
        saves.install(patches, current)
        rng.install(patches, current, warn)
        file_locks.install(patches, current)
        rpc.install(patches, current, warn)
        chosen_device.install(patches, current)
        compilers.install(patches)
        patches.on_restore(collector.end)
        endings.install(patches, current, _rest)
    except Exception:
        patches.restore()
        raise
    _patches = patches
    if not _fork_watched:
        os.register_at_fork(after_in_child=_forget)
        _fork_watched = True
    place = identity.from_environment() or identity.from_torch()
    if place is not None:
        _begin(*place)


def _begin(rank: int, world_size: int, meets: Mapping[str, str] = _NOWHERE) -> None:
    """Open the ring, start the pulse, make sure of an agent.

    `meets`: what a launcher would have put into the environment of where the ranks meet, if this one says so itself.
    """
    global _recorder, _pulse, _place
    _place = (rank, world_size)
    launched = {**_launch_environment(), **meets}
    job, attempt = job_names.from_environment(launched), identity.attempt(launched)
    directory = config.runtime_dir()
    local_rank, local_world = identity.on_this_node(_place)
    try:
        with place_of_rings(directory, job) as place:
            ring = RingFile(
                f"{place.path}/{_ring_name(place, rank)}", rank=rank, local_rank=local_rank,
                world=(world_size, local_world), attempt=attempt, place=place.again(),
            )  # fmt: skip
    except (NcclwatchError, OSError) as error:
        _take_off()  # nothing is recorded, so nothing stays patched
        warn(_without_ring(directory, error))
        return
    try:
        _record(ring, directory, launched, job)
    except BaseException:  # as where no thread can be started: nobody may judge by a ring that nobody writes
        ring.set_word(Word.DETACHED, 1)
        if _pulse is not None:
            _pulse.stop(0.0)
        _recorder = _pulse = None
        _take_off()
        raise


def _record(ring: RingFile, directory: str, launched: dict[str, str], job: str) -> None:
    """Begin to write into a ring."""
    global _recorder, _pulse
    from ncclwatch.rank.patches import chosen_device  # needs torch

    rank, world_size = _place
    local_rank, local_world = identity.on_this_node(_place)
    witness = worker_server.socket_of_this_rank(directory)
    wishes = listener.in_force(_wishes, launched)
    mine = {"witness": witness, "exit_signal": str(exit_signal.install(wishes["on_hang"])), **wishes}
    ring.set_word(Word.IDENTITY, ring.told(_identity(job, launched) | mine, kept=True))
    ring.set_word(Word.PULSE_NS, time.monotonic_ns())
    _recorder = _make_recorder(ring)
    _recorder.sites.grad_mode = sys.modules["torch"].is_grad_enabled
    _recorder.thread()
    first, listening = rank == 0 or local_rank == 0, listener.listener(ring, wishes, warn)
    _pulse = Pulse(_recorder, directory, first=first, witness=witness, warn=warn, listener=listening)
    _pulse.start()
    chosen_device.note_begun(_recorder)
    collector.begin(ring.words)
    _note_if_initialised()
    if rank == 0:
        resume.look(sys.argv, world_size, local_world, warn)


def _make_recorder(ring: RingFile) -> Recorder:
    if _native is None:
        recorder = Recorder(ring)
        if _hot is not None:
            from ncclwatch.rank.native import quicken  # needs torch

            quicken(recorder, _hot)
        return recorder
    from ncclwatch.rank.native import NativeRecorder  # needs torch

    return NativeRecorder(ring, _native)


def _asked(wanted: bool | str) -> bool | str:
    said = os.environ.get(config.ENV_NATIVE)
    if said in ("0", "1"):
        return said == "1"
    return WITHOUT_TORCH if said == WITHOUT_TORCH else wanted


def _load_hot(wanted: bool | str) -> ModuleType | None:
    """Load the hot path in C of the recorder in Python, where its module is there; it fits whatever torch there is."""
    if _asked(wanted) is False:
        return None
    from ncclwatch.native import loading

    try:
        return loading.load_alone()
    except Exception as error:  # a broken build must not cost more than its gain
        if raised_by_handler(error):
            raise
        warn(f"{error}. Everything is recorded in Python.")
        return None


def _load_native(wanted: bool | str) -> ModuleType | None:
    """Load the native recorder where it is built, by default; without it everything is recorded in Python."""
    wanted = _asked(wanted)
    if wanted is False or wanted == WITHOUT_TORCH:
        return None
    from ncclwatch.native import loading

    try:
        found = loading.load()
    except Exception as error:  # a broken build must not cost more than its gain
        if raised_by_handler(error):
            raise
        warn(f"{error}. The recorder in Python is used; it records the same.")
        return None
    if found is None and wanted is True:
        warn(f"{loading.why_none()}. The recorder in Python is used; it records the same.")
    return found


def _take_off() -> None:
    global _patches
    patches, _patches = _patches, None
    if patches is not None:
        patches.restore()


def _ring_name(place: PrivateDir, rank: int) -> str:
    """Return a fresh name; a ring that is there already belongs to a dead process that had our number."""
    global _begun
    _begun += 1
    again = f"-{_begun}" if _begun > 1 else ""
    name = f"{rank}-{os.getpid()}{again}.ring"
    place.unlink(name)
    return name


def _without_ring(directory: str, error: Exception) -> str:
    """Return why there is no ring and what to do: room is only one of the things that may be missing."""
    goes_on = "This rank is not watched; training goes on."
    if not isinstance(error, OSError):
        return f"cannot write a ring: {error}. {goes_on}"
    advice = f"name another directory below /dev/shm in {config.ENV_RUNTIME_DIR}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"free some space there, or {advice}"
    return (
        f"cannot write a ring under {directory}: {error.strerror or error}. {goes_on} {advice[0].upper()}{advice[1:]}"
    )


def _note_if_initialised() -> None:
    import torch.distributed as dist

    from ncclwatch.rank.patches.lifecycle import note_initialised

    if _recorder is not None and dist.is_available() and dist.is_initialized():
        note_initialised(_recorder, in_use=True)
        _exchange_by({"store": dist.distributed_c10d._get_default_store()})


def detach() -> None:
    """Stop recording and restore every patched name. See `ncclwatch.detach`."""
    global _recorder, _patches, _pulse, _exchange
    with _changing:
        if _exchange is not None:
            _exchange.end()
            _exchange = None
        recorder, _recorder = _recorder, None
        patches, _patches = _patches, None
        pulse, _pulse = _pulse, None
        if patches is not None:
            patches.restore()
        ended = pulse is None or pulse.stop()
        exit_signal.remove()
        if recorder is not None:
            recorder.close()
            recorder.ring.set_word(Word.DETACHED, 1)
            if ended:  # else the pulse is at work there; the memory stays in any case, for a thread that is inside
                recorder.ring.place.close()


def _rest() -> None:
    """At the end of the interpreter: let the pulse end first, however long its last beat takes."""
    if _pulse is not None:
        _pulse.stop(wait_s=config.EXIT_WAIT_S)
    worker_server.forget()
    if _recorder is not None:
        _recorder.keep_works()


def _begin_if_rank(said: Mapping[str, object] | None) -> None:
    """Open the ring at init_process_group, if that is not done: who calls it is a rank.

    Asked before with what the caller said, and afterwards with None, when torch knows what its backend has found out.
    """
    if _recorder is not None:
        if _pulse is not None and not _pulse.lost:
            _recorder.ring.set_word(Word.DETACHED, 0)  # a child may have said so, see `_take_over`
        if said is not None:
            _exchange_by(said)
        return
    with _changing:
        try:
            in_group = identity.from_torch()
            # A forked child of an initialised rank has its parent's group, and torch refuses it another one.
            place = in_group if said is None else identity.from_call(said) if in_group is None else None
            if _recorder is None and place is not None:
                _take_over(place)
                # The address of a store that the script made may be another one on each node.
                meets = store_exchange.endpoint_of(said) if said is not None and said.get("store") is None else None
                _begin(*place, identity.meeting_of(meets))
                if _exchange is None:
                    _exchange_by(said or {})
        except Exception as error:
            if raised_by_handler(error):
                raise
            warn(f"not watching this rank: {type(error).__name__}: {error}. Training goes on without ncclwatch.")


def _exchange_by(said: Mapping[str, object]) -> None:
    """Let the agents of a job on several nodes hear of its server, through the store of this call or of the group.

    A call after another one may have another store, or a new one at the same address.
    """
    global _exchange
    try:
        found = _exchange_through(said)
        if found is not None:
            if _exchange is not None:
                _exchange.end()
            _exchange = found
            found.begin()
    except Exception as error:
        if raised_by_handler(error):
            raise
        sentence = f"the nodes of this job do not find each other's agents: {type(error).__name__}: {error}"
        warn(f"{sentence}. Training goes on.", "exchange")


def _exchange_through(said: Mapping[str, object]) -> store_exchange.Exchange | None:
    """Return what carries it through that store, None where there is none or another rank of this node does it."""
    recorder, (rank, world_size) = _recorder, _place
    local_rank, local_world = identity.on_this_node(_place)
    if recorder is None or not store_exchange.is_wanted():
        return None
    if not store_exchange.looks(rank, local_rank, local_world):
        return None
    endpoint = store_exchange.endpoint_of(said)
    if endpoint is None or not may_span(world_size, local_world, endpoint[0]):
        return None
    ring, nodes = recorder.ring, -(-world_size // (local_world or 1))
    return store_exchange.Exchange(ring.place.again(), ring.file_name, endpoint, nodes=nodes)


def _forget() -> None:
    """In a forked child: be armed only, and leave the parent's ring alone. Patches see no recorder and step aside.

    A lock that another thread of the parent held at that moment is nobody's in here.
    """
    global _recorder, _pulse, _changing, _parents, _exchange
    _changing = threading.RLock()
    if _recorder is not None:
        collector.end()
        _recorder.forget()
        _parents = _recorder.ring
    _recorder = None
    _pulse = None
    _exchange = None


def _take_over(place: identity.Place) -> None:
    """In a forked child that becomes the rank that its parent was said to be, and never was: say that of the parent.

    The script that a launcher starts may fork the process that trains; by the environment both are the same rank.
    """
    global _parents
    ring, _parents = _parents, None
    if ring is not None and place == _place and not ring.word(Word.INITIALISED):
        ring.set_word(Word.DETACHED, 1)


def _is_helper() -> bool:
    """Say whether this process is a DataLoader worker or the like: it inherits RANK but is no rank."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    found = process.current_process()
    return process.parent_process() is not None and bool(found.daemon)


def _launch_environment() -> dict[str, str]:
    """Return the environment this process was started with.

    A script may change os.environ for itself; what its launcher set is what all ranks share.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = (part.partition(b"=") for part in file.read().split(b"\0") if part)
            found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        found = {}
    return found if "RANK" in found or config.ENV_JOB in found else {**found, **os.environ}


def _identity(job: str, launched: dict[str, str]) -> dict[str, str]:
    import torch

    return {
        "job": job,
        "instance": identity.instance(launched),
        "host": host_name(),
        "pid_namespace": pid_namespace(),
        "server": config.server_url(os.environ),
        "server_named": config.server_naming(os.environ),
        "share": "0" if os.environ.get(config.ENV_SHARE) == "0" else "1",
        "terminal": "0" if os.environ.get(config.ENV_TERMINAL) == "0" else "1",
        "hang_policy": _absolute(launched.get(config.ENV_HANG_POLICY, "").strip()),
        "restarts_left": identity.restarts_left(launched),
        "argv": " ".join(sys.argv)[:500],
        "title": _title(launched),
        # Of the environment: a name service that does not answer would block whoever asks it.
        "user": launched.get("USER", "") or launched.get("LOGNAME", "") or str(os.getuid()),
        "labels": job_labels.from_environment(launched),
        "named": "1" if job_names.is_named(launched) else "0",
        "cwd": _working_directory(),
        "nccl_ras": os.environ.get("NCCL_RAS_ADDR", ""),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
    }


def _absolute(path: str) -> str:
    return os.path.join(_working_directory(), os.path.expanduser(path)) if path else ""


def _title(launched: dict[str, str]) -> str:
    """Return what people call the job where nobody has named it for ncclwatch: by its batch job, else by its script."""
    if launched.get(config.ENV_JOB, "").strip():
        return ""
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    return (launched.get("SLURM_JOB_NAME", "") or (script if script not in ("-c", "-m") else ""))[:80]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def warn(sentence: str, subject: str = "") -> None:
    """Say one thing on a subject, once in the life of the process."""
    if subject not in _said:
        _said.add(subject)
        with warnings.catch_warnings():  # a user's "error" filter must not turn this into an exception
            warnings.simplefilter("always")
            warnings.warn(f"ncclwatch: {harmless(sentence)}", RuntimeWarning, stacklevel=4)
