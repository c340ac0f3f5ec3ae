"""Warns of ranks that were not set up alike: what differs, between whom, what comes of it, what to do.

Warnings, never alarms. Each rests on what ranks said of themselves at attach and at init, and is one incident for as
long as it is true. Who differs from the larger part is named; without a larger part it is "one of".
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ncclwatch.contract.model import preflight
from ncclwatch.contract.model.job import Habit, JobSnapshot, WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.preflight import LikeRanks, Setup
from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Cause, Culprit, Evidence, Severity
from ncclwatch.contract.words.text import host_words, ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation, Told
from ncclwatch_server.judge.rules.drift import models as drift_models
from ncclwatch_server.judge.rules.drift import samplers as drift_samplers
from ncclwatch_server.judge.rules.drift.settings import RULES, Rule, Scope
from ncclwatch_server.judge.theory.majority import majority

ADVICE = (
    "Start all ranks alike: the same image or environment on every node, the same variables (mpirun forwards only "
    "those named with -x), the same files to build the model from. Then restart the job."
)
CULPRITS_MAX = 32  # named one by one; the sentence has all
VALUES_MAX = 4  # told of one setting
CLOCK_S_MAX = 15.0  # three missed heartbeats of torchrun's rendezvous: then a node counts as dead

_BY_MODELS = frozenset(
    (Cause.DIVERGENT_CONTROL_FLOW, Cause.SIGNATURE_MISMATCH, Cause.RANK_CRASHED, Cause.TRANSPORT, Cause.UNDETERMINED)
)
_BY_PLACES = frozenset((Cause.INIT_INCOMPLETE, Cause.RANK_CRASHED, Cause.TRANSPORT, Cause.UNDETERMINED))
Sides = Mapping[str, tuple[int, ...]]  # the meanings of one setting, and the ranks that have each


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing in which ranks differ, before it is put into words."""

    about: str
    odd: tuple[int, ...]  # who differs
    others: tuple[int, ...]
    one_of: bool = False
    summary: str
    explanation: str
    advice: str
    certain: bool = False
    explains: frozenset[Cause] = frozenset()  # alarms that it may be the reason of
    wrapper: str = ""  # of a model: "DDP", "FSDP", "FSDP2"
    settings: tuple[str, ...] = ()  # by the names of their rules
    evidence: tuple[Evidence, ...] = ()
    sites: Mapping[int, CallSite] = field(default_factory=dict)
    doing: str = ""


def drifts(snapshot: JobSnapshot, found: Sequence[Finding]) -> tuple[Told, ...]:
    """Return a warning for each thing in which the ranks of a job differ that have to be alike."""
    if not found:
        return ()
    hosts = _hosts(snapshot.setup.alike)
    return tuple(_warned(snapshot, finding, hosts) for finding in found)


def findings(setup: Setup, habits: Mapping[WaitClass, Habit]) -> tuple[Finding, ...]:
    """Return in what the ranks of a job differ, from each other or from what the job has needed before."""
    if not any(setup):  # nobody has said anything
        return ()
    return (*(finding for look in _LOOKS for finding in look(setup)), *_timeouts(setup, habits))


def _warned(snapshot: JobSnapshot, finding: Finding, hosts: Mapping[int, str]) -> Told:
    views = snapshot.ranks
    said = Explanation(
        cause=Cause.CONFIGURATION_DRIFT,
        severity=Severity.WARNING,
        summary=finding.summary,
        explanation=finding.explanation,
        advice=finding.advice,
        culprits=tuple(
            Culprit(
                rank=rank,
                host=hosts.get(rank, ""),
                pid=views[rank].pid if rank in views else 0,
                device=views[rank].device if rank in views else "",
                call_site=finding.sites.get(rank),
                doing=finding.doing,
            )
            for rank in finding.odd[:CULPRITS_MAX]
        ),
        one_of=finding.one_of,
        evidence=finding.evidence,
    )
    return Told(said=said, predicted=finding.certain, about=finding.about)


# -- settings ------------------------------------------------------------------------------------------


def _settings(setup: Setup) -> Iterator[Finding]:
    """Compare all settings; those of one family that part the ranks in the same way are one finding."""
    if len(setup.alike) < 2:
        return
    parted: dict[tuple[str, str, tuple[int, ...]], list[tuple[Rule, Sides]]] = {}
    for rule in RULES:
        for host, sides in _sides(rule, setup.alike):
            odd, _ = _odd_ones(rule, sides)
            parted.setdefault((rule.family, host, odd), []).append((rule, sides))
    for (family, host, _), found in parted.items():
        yield _of_settings(family, host, found, _places(setup.alike))


def _sides(rule: Rule, alike: Sequence[LikeRanks]) -> Iterator[tuple[str, Sides]]:
    """Return the meanings of one setting and who has them, wherever there are several that should be one.

    With the host, where it has to agree on one host only.
    """
    meanings = [rule.meaning(ranks.facts) for ranks in alike]
    if len({meaning for meaning in meanings if meaning is not None}) < 2:
        return
    of_host: dict[str, dict[str, list[int]]] = {}
    for ranks, meaning in zip(alike, meanings, strict=True):
        for host, found in ranks.places if meaning is not None else ():
            place = host if rule.scope is Scope.HOST else ""
            of_host.setdefault(place, {}).setdefault(str(meaning), []).extend(found)
    for host, sides in of_host.items():
        if len(sides) > 1:
            yield host, {meaning: tuple(sorted(found)) for meaning, found in sides.items()}


def _odd_ones(rule: Rule, sides: Sides) -> tuple[tuple[int, ...], bool]:
    """Return the ranks that differ from the others, and whether it is undecided who does."""
    if rule.one_way:
        return tuple(sorted(rank for meaning, ranks in sides.items() if meaning for rank in ranks)), False
    return odd_ones(sides.values())


def odd_ones(sides: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], bool]:
    """Return the ranks outside of the majority, and False; all of them, and True, if no part has one."""
    parts = tuple(sides)
    usual = majority(parts)
    return tuple(sorted(rank for ranks in parts if ranks != usual for rank in ranks)), usual is None


def _of_settings(family: str, host: str, found: Sequence[tuple[Rule, Sides]], places: Mapping[int, str]) -> Finding:
    first, sides = found[0]
    odd, one_of = _odd_ones(first, sides)
    everyone = {rank for ranks in sides.values() for rank in ranks}
    others = tuple(sorted(everyone - set(odd)))
    names = ", ".join(rule.name for rule, _ in found)
    differs = "; ".join(
        f"{rule.name} is {_values_words(rule, parts, odd, places)}" for rule, parts in found[:VALUES_MAX]
    )
    more = f"; and {len(found) - VALUES_MAX} more ({names})" if len(found) > VALUES_MAX else ""
    reasons = dict.fromkeys(f"{rule.leads_to}" for rule, _ in found)
    return Finding(
        about=f"{family}: {first.name}" + (f" on {host}" if host else ""),
        odd=odd,
        others=others,
        one_of=one_of,
        certain=any(rule.certain for rule, _ in found),
        explains=frozenset(cause for rule, _ in found for cause in rule.explains),
        settings=tuple(rule.name for rule, _ in found),
        summary=f"{_who(odd, others, places, one_of)}: {differs}{more}.",
        explanation=" ".join(reasons),
        advice=" ".join(dict.fromkeys(rule.do for rule, _ in found)),
        evidence=tuple(
            Evidence(source="preflight", rank=ranks[0], fact=f"{rule.name} is {meaning or rule.unset}")
            for rule, parts in found
            for meaning, ranks in list(parts.items())[:VALUES_MAX]
        )[:16],
        doing=f"set up with another {names}" if len(found) == 1 else f"set up otherwise: {names}",
    )


def _values_words(rule: Rule, sides: Sides, odd: tuple[int, ...], places: Mapping[int, str]) -> str:
    """Return "Ring (other ranks: unset)", or with the ranks where that does not say it all."""
    ordered = sorted(sides.items(), key=lambda side: (len(side[1]), side[1]))
    theirs = [meaning for meaning, ranks in ordered if ranks == odd]
    if len(ordered) == 2 and theirs:
        (others,) = (meaning for meaning, _ in ordered if meaning != theirs[0])
        return f"{theirs[0] or rule.unset} (other ranks: {others or rule.unset})"
    words = [f"{meaning or rule.unset} on {ranks_at(ranks, places)}" for meaning, ranks in ordered[:VALUES_MAX]]
    more = [f"other values on {len(ordered) - VALUES_MAX} more groups of ranks"] if len(ordered) > VALUES_MAX else []
    return ", ".join(words + more)


def _who(odd: tuple[int, ...], others: tuple[int, ...], places: Mapping[int, str], one_of: bool) -> str:
    if one_of or not others:
        return f"{ranks_at(odd, places)} are configured differently"
    verb = "is" if len(odd) == 1 else "are"
    return f"{ranks_at(odd, places)} {verb} configured differently from {ranks_at(others, places)}"


def ranks_at(ranks: Sequence[int], places: Mapping[int, str]) -> str:
    """Return "ranks 2-3 (node[1-2])"."""
    hosts = host_words(places[rank] for rank in ranks if rank in places)
    return f"{ranks_words(ranks)} ({hosts})" if hosts else ranks_words(ranks)


def _places(alike: Iterable[LikeRanks]) -> dict[int, str]:
    """Return the hosts of ranks, as far as they tell anything: where all are on one host it is not said."""
    found = _hosts(alike)
    return found if len(set(found.values())) > 1 else {}


def _hosts(alike: Iterable[LikeRanks]) -> dict[int, str]:
    return {rank: host for ranks in alike for host, found in ranks.places for rank in found}


# -- models --------------------------------------------------------------------------------------------


def _models(setup: Setup) -> Iterator[Finding]:
    for sides in drift_models.differences(setup):
        yield _of_models(setup, sides)


def _of_models(setup: Setup, sides: Sequence[drift_models.Wrapped]) -> Finding:
    places = _places(setup.alike)
    odd, one_of = odd_ones([side.ranks for side in sides])
    norm = next((side for side in sides if not set(side.ranks) & set(odd)), None) if not one_of else sides[0]
    against = next(side for side in sides if side is not norm)
    norm = norm or sides[0]
    kind, members = norm.model.key
    others = tuple(sorted(rank for side in sides for rank in side.ranks if rank not in odd))
    parameters = setup.parameters.get(norm.model.key, {})
    found = drift_models.first_difference(parameters, against.ranks[0], norm.ranks[0])
    where = f": {_pair_words(found, against.ranks, norm.ranks)}" if found else ""
    sites = {
        rank: CallSite(file=site[0], line=site[1], function=site[2])
        for ranks in setup.alike
        for model in ranks.facts.models
        if model.key == norm.model.key and (site := model.site) is not None
        for rank in ranks.ranks
    }
    return Finding(
        about=f"models {kind} {members}",
        explains=_BY_MODELS,
        wrapper=kind,
        odd=odd,
        others=others,
        one_of=one_of,
        certain=True,
        summary=(f"{_wrappers(kind, odd, others, places, one_of)}{where}."),
        explanation=f"{_counts(against, norm)} {_FATES['DDP' if kind == 'DDP' else 'FSDP']}",
        advice=(
            "Build the model on all ranks from the same configuration. Look at what that line reads from a file, a "
            "vocabulary or the environment of its own node. " + ADVICE
        ),
        evidence=tuple(
            Evidence(source="preflight", rank=side.ranks[0], fact=_model_fact(side, parameters)) for side in sides[:8]
        ),
        sites=sites,
        doing=f"wraps a different model with {kind}",
    )


def _samplers(setup: Setup) -> Iterator[Finding]:
    """Tell of loops over data that ranks split otherwise."""
    places = _places(setup.alike)
    for split in drift_samplers.differences(setup):
        odd, one_of = (split.odd, False) if split.odd else odd_ones(split.sides.values())
        others = tuple(sorted({rank for ranks in split.sides.values() for rank in ranks} - set(odd)))
        site = CallSite(file=split.site[0], line=split.site[1], function=split.site[2])
        parted = sorted(split.sides.items(), key=lambda side: side[1])
        values = " and ".join(f"{value} on {ranks_at(ranks, places)}" for value, ranks in parted[:VALUES_MAX])
        yield Finding(
            about=f"{split.what} in {site}",
            explains=frozenset((Cause.UNEVEN_BATCHES,)),
            odd=odd,
            others=others,
            one_of=one_of,
            summary=f"ranks split the data of the loop at {site.place} not as {split.kind} requires: {split.what} is "
            f"{values}.",
            explanation=split.leads_to,
            advice=split.do,
            evidence=tuple(
                Evidence(source="preflight", rank=ranks[0], fact=f"{split.kind}: {split.what} is {value}")
                for value, ranks in parted[:VALUES_MAX]
            ),
            sites=dict.fromkeys(odd, site),
            doing=f"{split.what} of its {split.kind} is another",
        )


_FATES = {
    "DDP": (
        "DDP reduces the gradients of all ranks parameter by parameter, in their order: it raises when it compares "
        "shapes, or ranks wait for gradients that others do not have, or one parameter is averaged with another."
    ),
    "FSDP": (
        "FSDP gathers and reduces unit by unit and compares nothing: ranks with other units issue other collectives, "
        "and wait in different ones or abort."
    ),
}


def _wrappers(kind: str, odd: tuple[int, ...], others: tuple[int, ...], places: Mapping[int, str], one_of: bool) -> str:
    if one_of or not others:
        return f"{ranks_at(odd, places)} wrap different models with {kind}"
    verb = "wraps" if len(odd) == 1 else "wrap"
    return f"{ranks_at(odd, places)} {verb} a different model with {kind} than {ranks_at(others, places)}"


def _counts(one: drift_models.Wrapped, other: drift_models.Wrapped) -> str:
    if one.model.total == other.model.total:
        order = one.model.units == other.model.units
        return "The parameters are the same in another order." if order else f"Both have {one.model.total} parameters."
    return (
        f"{ranks_words(one.ranks).capitalize()} wrapped {one.model.total} parameters, {ranks_words(other.ranks)} "
        f"{other.model.total}."
    )


def _pair_words(found: tuple[str, str], odd: Sequence[int], others: Sequence[int]) -> str:
    here, there = (text or "no further parameter" for text in found)
    return f"{here} on rank {odd[0]}, {there} on rank {others[0]}"


def _model_fact(side: drift_models.Wrapped, parameters: Mapping[int, Sequence[str]]) -> str:
    model = side.model
    last = parameters.get(side.ranks[0])
    tail = f", the last is {last[-1]}" if last else ""
    units = f" in {len(model.units)} units" if len(model.units) > 1 else ""
    return f"{model.kind} for ranks {model.members} wraps {model.total} parameters{units}{tail}"


# -- what is wrong by itself ---------------------------------------------------------------------------


def _interfaces(setup: Setup) -> Iterator[Finding]:
    places = _places(setup.alike)
    by_choice: dict[str, list[int]] = {}
    for ranks in setup.alike:
        choice = ranks.facts.get(preflight.INTERFACES)
        if choice:
            by_choice.setdefault(choice, []).extend(ranks.ranks)
    for choice, found in by_choice.items():
        odd = tuple(sorted(found))
        yield Finding(
            about=f"interface {choice}",
            explains=_BY_PLACES,
            odd=odd,
            others=(),
            certain=True,
            summary=f"{ranks_at(odd, places)} {_have(odd)} no network interface for {choice}.",
            explanation=(
                "The backend binds to that interface before it connects: these ranks fail in init_process_group or in "
                "their first collective, and the others wait for them."
            ),
            advice=(
                f"Set {choice.partition('=')[0]} on each node to an interface that it has (`ip -br addr`), or unset "
                'it. NCCL also takes a prefix ("eth") and an exclusion ("^lo,docker").'
            ),
            evidence=(Evidence(source="preflight", rank=odd[0], fact=f"no interface of this node meets {choice}"),),
            doing=f"has no interface for {choice}",
        )


def _worlds(setup: Setup) -> Iterator[Finding]:
    for size, said in sorted(setup.worlds.items()):
        places = {rank: host for host, ranks in said for rank in ranks}
        odd = tuple(sorted(places))
        yield Finding(
            about=f"world size {size}",
            explains=_BY_PLACES,
            odd=odd,
            others=(),
            certain=True,
            summary=f"{ranks_at(odd, places)} {_have(odd)} WORLD_SIZE {size}, the other ranks another one.",
            explanation=(
                "All of them meet at one address. init_process_group ends on a rank when as many have come as it was "
                "told: some wait for ranks that nobody starts, or leave others out."
            ),
            advice="Give all ranks one WORLD_SIZE: the same --nnodes and --nproc-per-node in torchrun, or the same "
            "world_size= in init_process_group, on every node.",
            doing=f"has WORLD_SIZE {size}",
        )


def _twins(setup: Setup) -> Iterator[Finding]:
    if not setup.twice:
        return
    odd = tuple(sorted(setup.twice))
    hosts = {host for found in setup.twice.values() for host in found}
    yield Finding(
        about="rank twice",
        explains=_BY_PLACES,
        odd=odd,
        others=(),
        certain=True,
        summary=f"{ranks_words(odd)} {'exists' if len(odd) == 1 else 'exist'} twice, on {host_words(hosts)}.",
        explanation=(
            "Two processes came to one rendezvous with one RANK. Whichever comes second takes the other's place or is "
            "refused, and its peers connect to the wrong one or wait."
        ),
        advice="Start each RANK once. Look for processes of an earlier start that still live, a node that is listed "
        "twice, or two nodes with one --node-rank.",
        doing="exists twice",
    )


def _clocks(setup: Setup) -> Iterator[Finding]:
    """Tell of clocks that torchrun's rendezvous, which compares them, would take for dead nodes."""
    elastic = any(ranks.facts.get(preflight.LAUNCHER) == "elastic" for ranks in setup.alike)
    if not elastic or len(setup.clocks_s) < 2:
        return
    known = [*setup.clocks_s.values()]
    # Between as many clocks on one side as on the other decides that of the server.
    ordered = sorted(known if len(known) % 2 else [*known, 0.0])
    middle = ordered[len(ordered) // 2]
    off = {host: ahead - middle for host, ahead in setup.clocks_s.items() if abs(ahead - middle) > CLOCK_S_MAX}
    ranks = {rank: host for rank, host in _hosts(setup.alike).items() if host in off}
    if not off or not ranks:
        return
    said = ", ".join(
        f"{host} by {seconds_words(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
        for host, ahead in sorted(off.items(), key=lambda item: -abs(item[1]))[:VALUES_MAX]
    )
    untold = len(off) - VALUES_MAX
    more = f" and {untold} more host{'s' if untold > 1 else ''}" if untold > 0 else ""
    odd = tuple(sorted(ranks))
    yield Finding(
        about="clocks",
        odd=odd,
        others=(),
        summary=f"the clocks of hosts differ: {said}{more}, with {ranks_words(odd)}.",
        explanation=(
            "torchrun's rendezvous compares the times that hosts write into it, and takes a node for dead whose last "
            "sign of life seems older than 15 s: the job restarts, or waits at the next rendezvous."
        ),
        advice="Let chrony or systemd-timesyncd set the clock of these hosts (`timedatectl`).",
        evidence=tuple(
            Evidence(source="agent", rank=min(r for r, h in ranks.items() if h == host), fact=f"clock {ahead:+.0f} s")
            for host, ahead in list(off.items())[:8]
            if host in ranks.values()
        ),
        doing="on a host whose clock is off",
    )


def timeout_s(setup: Setup) -> float:
    """Return the timeout after which the default group ends the job, 0 if it is unknown or nothing enforces it."""
    said = [
        float(text)
        for ranks in setup.alike
        if (text := ranks.facts.get(preflight.TIMEOUT_S)).replace(".", "", 1).isdecimal()
        and ranks.facts.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") != "0"
    ]
    return min(said, default=0.0)


def _timeouts(setup: Setup, habits: Mapping[WaitClass, Habit]) -> Iterator[Finding]:
    """Tell of a timeout that ends what an earlier run went through.

    Only where that run's own timeout left room for it: a wait may also have been in a group with a timeout of its own.
    """
    limit_s = timeout_s(setup)
    longer = {
        kind: habit
        for kind, habit in habits.items()
        if 0.0 < limit_s < habit.longest_s < habit.timeout_s and kind.phase is not Phase.STARTUP
    }
    if not longer:
        return
    kind, habit = max(longer.items(), key=lambda item: item[1].longest_s)
    ranks = tuple(sorted(rank for each in setup.alike for rank in each.ranks))
    what = kind.name or kind.phase.value
    yield Finding(
        about="timeout",
        odd=(),
        others=ranks,
        summary=(
            f"the timeout of {seconds_words(limit_s)} is shorter than what this job needs: ranks have waited "
            f"{seconds_words(habit.longest_s)} in {kind.op} before, for {what}, and went on."
        ),
        explanation=(
            f"That was in a run with a timeout of {seconds_words(habit.timeout_s)}. In this one torch ends the job "
            f"when such a wait has lasted {seconds_words(limit_s)}, though nothing hangs."
        ),
        advice=(
            f"Give init_process_group a timeout well above {seconds_words(habit.longest_s)}, such as "
            f"timedelta(seconds={math.ceil(2 * habit.longest_s / 60) * 60}), or shorten that work."
        ),
    )


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


_LOOKS: tuple[Callable[[Setup], Iterator[Finding]], ...] = (
    _worlds, _twins, _settings, _models, _samplers, _interfaces, _clocks,
)  # fmt: skip
