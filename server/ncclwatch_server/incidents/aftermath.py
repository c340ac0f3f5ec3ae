"""Says which attempts of a job belong together, which hangs of them are the same, and what each has cost. Pure."""

from collections.abc import Iterable

from ncclwatch.contract.model.verdict import Severity
from ncclwatch.contract.on_hang.decision import Hang
from ncclwatch.contract.words.aftermath import aftermath_words, cost_words
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey

_LAST_WORDS_S = 10.0  # for about so long an attempt is judged after its end
_UNNAMED_RUN = "none"  # torchrun calls each run so that has no --rdzv-id


def restarts_of(instance: str) -> int:
    """Return how often a scheduler or `ncclwatch run` has started a launch again: what is behind the "#"."""
    count = instance.rpartition("#")[2] if "#" in instance else ""
    return int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0


def is_restart(key: JobKey) -> bool:
    """Whether a launcher has started this job again, by its own count."""
    return key.attempt > 0 or restarts_of(key.instance) > 0


def follows(later: JobKey, earlier: JobKey) -> bool:
    """Whether one attempt is a later one of the same job, by the count of what started it again.

    The ranks of torchrun may meet at another address in each attempt, with etcd or without a store that they share:
    there its run id is what stays the same, if it was given one. A job that somebody starts again by hand is another
    one: nothing tells whether it does the same.
    """
    if later.name != earlier.name:
        return False
    if later.instance == earlier.instance:
        return later.run == earlier.run and later.attempt > earlier.attempt
    if restarts_of(later.instance) > restarts_of(earlier.instance):
        return True
    run = _run_of(later.instance)
    return run not in ("", _UNNAMED_RUN) and run == _run_of(earlier.instance) and later.attempt > earlier.attempt


def was_over(incident: Incident, key: JobKey, at: float) -> bool:
    """Whether an attempt may come after the one that an incident is of: not while that runs elsewhere.

    Two jobs at a time may have one run id, which people copy.
    """
    if incident.key.instance == key.instance:
        return True
    return incident.closed_at is not None and incident.closed_at - _LAST_WORDS_S <= at


def _run_of(instance: str) -> str:
    """Return torchrun's run id with the count of launches: what is behind the address in "host:port/run#1"."""
    return instance.partition("/")[2]


def is_hang(incident: Incident) -> bool:
    """Whether the job could not go on."""
    return incident.verdict.severity is Severity.CRITICAL and not incident.verdict.predicted


def hang_of(incident: Incident) -> Hang:
    """Return what of an incident decides what is done about it, and whether another one is the same."""
    sites = (culprit.call_site for culprit in incident.verdict.culprits)
    return Hang(
        cause=incident.verdict.cause.value,
        certainty=incident.verdict.certainty.value,
        ranks=frozenset(culprit.rank for culprit in incident.verdict.culprits),
        places=frozenset(f"{site.file}:{site.line}" for site in sites if site is not None),
        attempt=incident.key.attempt,
        saved=incident.saved,
        traced=any(culprit.traced for culprit in incident.verdict.culprits),
    )


def same_before(incident: Incident, known: Iterable[Incident]) -> Incident | None:
    """Return the newest incident of an earlier attempt that is the same hang, None if there is none."""
    hang = hang_of(incident)
    earlier = (
        each
        for each in known
        if follows(incident.key, each.key)
        and was_over(each, incident.key, incident.opened_at)
        and each.state is not IncidentState.RESOLVED
        and is_hang(each)
        and hang.is_like(hang_of(each))
    )
    return max(earlier, key=lambda each: (each.opened_at, each.id), default=None)


def words(incident: Incident) -> str:
    """Return what became of an incident after its job was started again, "" where that is unknown."""
    return aftermath_words(incident.recovered_after_s, incident.came_back_as, incident.came_back_from)


def began_at(incident: Incident) -> float:
    """Return when what an incident tells of began, in seconds since 1970."""
    return incident.opened_at - incident.onset_to_open_s


def lost_s(incident: Incident, now: float) -> float | None:
    """Return for how long a job has not gone on: until it did, or had ended, or until now. None: it did, or unknown."""
    if not is_hang(incident) or not incident.end_seen:
        return None
    if incident.recovered_after_s is not None:
        return incident.recovered_after_s
    until = now if incident.closed_at is None else incident.closed_at
    return max(0.0, until - began_at(incident))


def cost(incident: Incident, now: float) -> str:
    """Return in words what a hang has cost until now, "" for what is no hang, or where that is unknown."""
    lost = lost_s(incident, now)
    return "" if lost is None else cost_words(lost, incident.world_size, incident.gpus)
