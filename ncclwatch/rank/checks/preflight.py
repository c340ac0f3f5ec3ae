"""Writes how this rank was set up beside its ring, once and again when it has changed; the server compares.

Drift between ranks (another image on one node, a variable that reached some hosts only, a model built from a stale
file) hangs jobs in ways that no stack shows. The pulse thread writes, so attach() pays nothing for it; only what may
end the process at once, a model that DDP is about to verify, is written by the thread that wraps it.
"""

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence

from ncclwatch.contract import config
from ncclwatch.contract.machine import resources
from ncclwatch.contract.model import preflight
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.shortening import short_text
from ncclwatch.contract.words.text import rank_list
from ncclwatch.rank.ring.ringfile import RingFile

Parameter = tuple[str, str]  # name, and what has to agree: "float32 64x32", "bfloat16 8 frozen"
_MEMBERS_CHARS = 120


class Chain:
    """All that was wrapped in one way for the same ranks, unit by unit."""

    def __init__(self, kind: str, members: str) -> None:
        self.kind, self.members = kind, members
        self.used = 0
        self.site: Sequence[object] = ()  # of the newest unit
        self.units: list[str] = []
        self.parameters: list[str] = []
        self._names: list[str] = []
        self._running = hashlib.blake2b(digest_size=8)

    def add(self, parameters: Iterable[Parameter], site: Sequence[object]) -> None:
        """Add one unit."""
        for name, shape in parameters:
            self._running.update(f"{shape};".encode())
            self._names.append(name)
            if len(self.parameters) < preflight.PARAMETERS_MAX:
                self.parameters.append(short_text(f"{name} {shape}", preflight.PARAMETER_CHARS_MAX))
        self._running.update(b"|")
        self.site = site
        if len(self.units) < preflight.UNITS_MAX:
            self.units.append(self._running.hexdigest())

    def told(self) -> dict[str, object]:
        """Return it as it is written."""
        return {
            "kind": self.kind, "members": self.members, "site": self.site, "used": self.used, "units": self.units,
            "order": _digest(self._names), "names": _digest(sorted(self._names)), "count": len(self._names),
            "parameters": self.parameters,
        }  # fmt: skip


class Preflight:
    """The facts of one rank that its peers should share."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._chains: list[Chain] = []
        self._samplers: list[dict[str, object]] = []
        self._backend = ""
        self._stale = True
        self._written = ""
        self._writing = threading.Lock()  # nobody waits for it: who does not get it leaves the work to who has it

    def note_backend(self, backend: str) -> None:
        """Note by what the default group moves data, or will: then some settings matter and others do not."""
        self._backend = backend
        self._stale = True

    def note_wrapped(
        self, kind: str, ranks: Sequence[int], parameters: Iterable[Parameter], site: Sequence[object]
    ) -> None:
        """Note something that is about to be wrapped for these ranks: a model, or a unit of one."""
        members = members_text(ranks)
        chain = next((each for each in self._chains if (each.kind, each.members) == (kind, members)), None)
        if chain is None:
            if len(self._chains) >= preflight.MODELS_MAX:
                return
            chain = Chain(kind, members)
            self._chains.append(chain)
        chain.add(parameters, site)
        self._stale = True

    def note_sampler(self, told: dict[str, object], site: Sequence[object]) -> None:
        """Note how the loop over data at a site splits it between ranks."""
        if len(self._samplers) < preflight.SAMPLERS_MAX:
            self._samplers.append({"site": site, **told})
            self._stale = True

    def note_use(self) -> None:
        """Note that what FSDP2 has sharded so far is used for the first time: it is whole."""
        for chain in self._chains:
            if chain.kind == "FSDP2" and not chain.used:
                chain.used = len(chain.units)
                self._stale = True

    def publish(self) -> None:
        """Write what has changed, if anything may have. Raises OSError if it cannot be written."""
        while self._stale and self._writing.acquire(blocking=False):
            try:
                self._stale = False
                self._write(self._text())
            finally:
                self._writing.release()

    def _text(self) -> str:
        values = gather(os.environ, self._backend, self._ring.word(Word.TIMEOUT_MS))
        models = [chain.told() for chain in self._chains]
        samplers = list(self._samplers)
        text = _json(values, models, samplers)
        while len(text) > config.FACTS_BYTES_MAX and models:  # names are there to be shown; digests decide
            longest = max(models, key=lambda model: len(str(model["parameters"])))
            if not longest["parameters"]:
                models.pop()
            longest["parameters"] = []
            text = _json(values, models, samplers)
        return text

    def _write(self, text: str) -> None:
        if text == self._written:
            return
        self._ring.place.write(self._ring.file_name + config.FACTS_SUFFIX, text.encode("utf-8", "replace"))
        self._written = text


def _json(values: object, models: object, samplers: object) -> str:
    return json.dumps({"values": values, "models": models, "samplers": samplers}, separators=(",", ":"))


def gather(environ: Mapping[str, str], backend: str, timeout_ms: int) -> dict[str, str]:
    """Return the facts of this process that are no models. A fact that is unknown is left out."""
    import torch

    shm = resources.shm_mb()
    found = {
        preflight.PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}",
        preflight.TORCH: torch.__version__.split("+")[0],
        preflight.CUDA: torch.version.cuda or "",
        preflight.NCCL: _nccl_version() if torch.version.cuda else "",
        preflight.DRIVER: resources.nvidia_driver(),
        preflight.BACKEND: backend,
        preflight.DEBUG: _debug_level(),
        preflight.SHM_MB: "" if shm is None else str(shm),
        preflight.PTRACE: resources.ptrace_refusal(),
        preflight.INFINIBAND: "active" if resources.infiniband_is_active() else "",
        preflight.INTERFACES: unmet_interfaces(environ, backend, resources.interfaces()),
        preflight.TIMEOUT_S: f"{timeout_ms / 1000:g}" if timeout_ms else "",
        preflight.LAUNCHER: "elastic" if environ.get("TORCHELASTIC_RUN_ID") else "",
    }
    found |= {name: environ.get(name, "") for name in preflight.VARIABLES}
    return {key: short_text(value, config.FACT_CHARS_MAX) for key, value in found.items() if value}


def unmet_interfaces(environ: Mapping[str, str], backend: str, names: Sequence[str]) -> str:
    """Return the choice of interfaces that nothing on this node meets, for the backends that will be asked for it."""
    for variable, asked_by, unmet in (
        ("NCCL_SOCKET_IFNAME", "nccl", resources.nccl_takes_none),
        ("GLOO_SOCKET_IFNAME", "gloo", resources.gloo_lacks),
    ):
        choice = environ.get(variable, "")
        if choice and asked_by in backend and unmet(choice, names):
            return f"{variable}={choice}"
    return ""


def members_text(ranks: Sequence[int]) -> str:
    """Return ranks in a bounded text that other members of the group have too."""
    text = rank_list(ranks)
    return text if len(text) <= _MEMBERS_CHARS else f"{text[:_MEMBERS_CHARS]}..#{_digest([text])}"


def _digest(words: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(words).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _debug_level() -> str:
    import torch.distributed as dist

    if not dist.is_available():
        return ""
    from torch.distributed.distributed_c10d import get_debug_level

    return "DETAIL" if get_debug_level().name == "DETAIL" else ""


def _nccl_version() -> str:
    import torch

    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError, ImportError):  # a build without NCCL
        return ""
