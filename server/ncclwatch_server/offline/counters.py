"""Finds the counters of groups that a dump has no entry of, and keeps those that can be trusted.

torch writes `pg_config` by the name of a group and `pg_status` by the number that the rank itself gave it. Both are
given out in the order in which the rank made its groups, so where the lists are equally long they go together in
numeric order; the entries, which have both, confirm or contradict it.
"""

from collections.abc import Iterable, Mapping

Counts = tuple[int, int]  # (last enqueued, last completed)


def paired(names: Iterable[str], status: Mapping[str, Counts], seen: Mapping[str, str]) -> dict[str, Counts]:
    """Return the counters by name of the groups that are not `seen` (number: name); none if the pairing is in doubt."""
    ordered = list(names)
    if len(ordered) != len(status) or not all(map(str.isdecimal, (*ordered, *status))):
        return {}
    pairs = dict(zip(sorted(status, key=int), sorted(ordered, key=int), strict=True))
    if any(pairs.get(number) != name for number, name in seen.items()):
        return {}
    return {
        name: (max(0, status[number][0]), max(0, status[number][1]))
        for number, name in pairs.items()
        if number not in seen
    }


def lag_behind(status: Mapping[str, Counts], ended: Mapping[str, int | None], *, unlisted_ended: bool) -> bool:
    """Say whether an operation had ended that the counters do not know of yet: its rank was at work at that moment.

    The list is brought up to date when it is written, the counters ten times a second by NCCL's watchdog
    (`FlightRecorder::update_state` and `ProcessGroupNCCL::watchdogHandler` of torch). `ended`: the newest operation of
    each group (number) that had ended by the list; None: its counters count sends and receives, too.
    """
    for number, (enqueued, completed) in status.items():
        through = ended.get(number, enqueued if unlisted_ended else None)
        if through is not None and through > max(0, completed):
            return True
    return False
