"""What a rank says of how it was set up, so that a server can see whether all ranks are alike.

A rank writes it as one JSON text beside its ring, once and whenever it changes. The text is the rank's and may be
anything: what does not fit is left out. Only the variables named here are ever told: an environment holds secrets.

Named tuples, not dataclasses: every rank imports this at attach, and they are made in a quarter of the time.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ncclwatch.contract import config, foreign_json

VALUES_MAX = 64  # facts of one rank, besides its models
MODELS_MAX = 16  # of one rank; later ones are not compared
SAMPLERS_MAX = 16  # of one rank; later ones are not compared
UNITS_MAX = 512  # of one model
PARAMETERS_MAX = 2000  # of one model, by name and shape
PARAMETER_CHARS_MAX = 160

# Facts that are no variables of the environment. All values are texts; a fact that is not there is unknown.
PYTHON = "python"  # "3.11"
TORCH = "torch"  # "2.13.0"
CUDA = "cuda"  # that torch was built for
NCCL = "nccl"
DRIVER = "driver"
BACKEND = "backend"  # as init_process_group was told, then as it is: "nccl", "cpu:gloo,cuda:nccl"
DEBUG = "debug"  # "DETAIL" if torch wraps every group in one that checks collectives
SHM_MB = "shm_mb"  # size of /dev/shm
PTRACE = "ptrace"  # why the node refuses to trace this process, "" if it does not
INFINIBAND = "infiniband"  # "active" if a port is
INTERFACES = "interfaces"  # "NCCL_SOCKET_IFNAME=eth7": a choice that no interface of this node meets
TIMEOUT_S = "timeout_s"  # of the default group
LAUNCHER = "launcher"  # "elastic" under torchrun

# Which part of the data a rank reads, by what the part's number is.
PART_OWN = "own"  # its rank
PART_FIRST = "first"  # 0, on another rank than 0
PART_LOCAL = "local"  # its local rank, and not its rank
PART_OTHER = "other"

# Variables that ranks of one job have to agree on, some only on one node or between nodes: the judge knows where.
VARIABLES = (
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "TORCH_DIST_INIT_BARRIER",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
)
KEYS = frozenset(
    (
        PYTHON, TORCH, CUDA, NCCL, DRIVER, BACKEND, DEBUG, SHM_MB, PTRACE, INFINIBAND, INTERFACES, TIMEOUT_S,
        LAUNCHER, *VARIABLES,
    )
)  # fmt: skip


class ModelFacts(NamedTuple):
    """All that a rank has wrapped in one way for the same ranks, in the order in which it did, as digests.

    `units` are running digests over shapes, types and requires_grad: each covers all units up to its own, so that two
    lists show where they part. A unit is a model for DDP and FSDP1, and a call of fully_shard for FSDP2.
    """

    kind: str  # "DDP", "FSDP", "FSDP2"
    members: str  # global ranks of the group or mesh it is wrapped for: "0-3"
    units: tuple[str, ...]
    order: str  # digest of the names in their order
    names: str  # digest of the names, sorted
    total: int  # of parameters
    used: int = 0  # units of FSDP2 there were when they were used first; 0: not used yet, or another kind
    site: tuple[str, int, str] | None = None  # file, line and function of the newest unit

    @property
    def key(self) -> tuple[str, str]:
        """What its counterpart on another rank has in common with it."""
        return self.kind, self.members


class SamplerFacts(NamedTuple):
    """How one loop over data splits it between ranks, as its sampler says at the first pass."""

    site: tuple[str, int, str]  # file, line and function of the loop
    kind: str  # class of the sampler
    parts: int  # >= 1
    part: str  # which of them the rank reads, see `PART_OWN`; "": there are not as many parts as ranks
    samples: int  # in the data set; 0: unknown
    length: int  # of the sampler, in samples or batches; 0: unknown
    order: str  # "not shuffled", "shuffled with seed 0"; "": unknown


class RankFacts(NamedTuple):
    """What one rank says of how it was set up. Ranks that are alike are equal."""

    values: tuple[tuple[str, str], ...] = ()  # sorted
    models: tuple[ModelFacts, ...] = ()
    samplers: tuple[SamplerFacts, ...] = ()

    def get(self, key: str) -> str:
        """Return a fact, "" if it is unknown."""
        return next((value for name, value in self.values if name == key), "")


Places = tuple[tuple[str, tuple[int, ...]], ...]  # host and ranks on it


class LikeRanks(NamedTuple):
    """Ranks that said the same of themselves."""

    facts: RankFacts
    places: Places

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(sorted(rank for _, ranks in self.places for rank in ranks))


class Setup(NamedTuple):
    """How the ranks of one job were set up, as far as they have said."""

    alike: tuple[LikeRanks, ...] = ()
    # What ranks have wrapped, by the key of ModelFacts and by rank; of some ranks, once it was asked for.
    parameters: Mapping[tuple[str, str], Mapping[int, tuple[str, ...]]] = {}
    worlds: Mapping[int, Places] = {}  # who says that the job has another number of ranks
    twice: Mapping[int, tuple[str, ...]] = {}  # hosts of ranks that exist twice
    clocks_s: Mapping[str, float] = {}  # by how much a host's clock is ahead of the server's

    def of(self, rank: int) -> RankFacts:
        """Return what a rank has said of itself, nothing if it has not."""
        return next((each.facts for each in self.alike if rank in each.ranks), RankFacts())


def parse(text: str) -> RankFacts:
    """Return the facts that a text holds."""
    found = _object(text)
    values = found.get("values")
    models, samplers = found.get("models"), found.get("samplers")
    return RankFacts(
        values=bounded(values.items()) if isinstance(values, dict) else (),
        models=tuple(
            model
            for each in (models[:MODELS_MAX] if isinstance(models, list) else ())
            if isinstance(each, dict) and (model := _model(each)) is not None
        ),
        samplers=tuple(
            sampler
            for each in (samplers[:SAMPLERS_MAX] if isinstance(samplers, list) else ())
            if isinstance(each, dict) and (sampler := _sampler(each)) is not None
        ),
    )


def parse_parameters(text: str, key: tuple[str, str]) -> tuple[str, ...]:
    """Return the wrapped parameters of one kind that a text holds, in order: "net.0.weight float32 64x32"."""
    models = _object(text).get("models")
    for each in models if isinstance(models, list) else ():
        model = _model(each) if isinstance(each, dict) else None
        if model is not None and model.key == key:
            found = each.get("parameters")
            listed = found[:PARAMETERS_MAX] if isinstance(found, list) else ()
            return tuple(text[:PARAMETER_CHARS_MAX] for text in listed if isinstance(text, str))
    return ()


def bounded(values: Iterable[tuple[object, object]]) -> tuple[tuple[str, str], ...]:
    """Return the facts that are known here, sorted and of bounded length."""
    return tuple(
        sorted(
            (key, value[: config.FACT_CHARS_MAX])
            for key, value in values
            if isinstance(key, str) and key in KEYS and isinstance(value, str)
        )
    )


def trimmed(facts: RankFacts) -> RankFacts:
    """Return facts within their bounds: an agent may send anything."""
    return facts._replace(
        values=bounded(facts.values),
        models=tuple(model._replace(units=model.units[:UNITS_MAX]) for model in facts.models[:MODELS_MAX]),
        samplers=facts.samplers[:SAMPLERS_MAX],
    )


def _object(text: str) -> Mapping[str, object]:
    found = foreign_json.read(text) if text else {}
    return found if isinstance(found, dict) else {}


def _model(found: Mapping[str, object]) -> ModelFacts | None:
    units = found.get("units")
    if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
        return None
    return ModelFacts(
        kind=_text(found.get("kind")),
        members=_text(found.get("members")),
        units=tuple(unit[:16] for unit in units[:UNITS_MAX]),
        order=_text(found.get("order"))[:16],
        names=_text(found.get("names"))[:16],
        total=_number(found.get("count")),
        used=_number(found.get("used")),
        site=_site(found.get("site")),
    )


def _sampler(found: Mapping[str, object]) -> SamplerFacts | None:
    site, parts = _site(found.get("site")), _number(found.get("parts"))
    if site is None or not parts:
        return None
    kind, part, order = (_text(found.get(name)) for name in ("kind", "part", "order"))
    return SamplerFacts(
        site=site,
        kind=kind,
        parts=parts,
        part=part,
        samples=_number(found.get("samples")),
        length=_number(found.get("length")),
        order=order,
    )


def _site(found: object) -> tuple[str, int, str] | None:
    if not isinstance(found, list) or len(found) != 3 or not _text(found[0]):
        return None
    return _text(found[0]), _number(found[1]), _text(found[2])


def _text(value: object) -> str:
    return value[: config.FACT_CHARS_MAX] if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
