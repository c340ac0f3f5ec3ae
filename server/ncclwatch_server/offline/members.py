"""Finds the members of groups whose own recorder does not tell them: gloo's does not, nor does a log.

Then the members are those that another rank tells; of the default group all ranks of the job. Of any other group only
those that used it are known, and it has a size that nobody knows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ncclwatch_server.offline.recording import GroupKey, Recording

DEFAULT_GROUP = "default_pg"


def with_members(
    recordings: Mapping[int, Recording], world: tuple[int, ...], told: Iterable[GroupKey] = ()
) -> dict[int, Recording]:
    """Return the recordings with the members of every group, where they are known. `told`: by rings."""
    known: dict[str, set[GroupKey]] = {}
    lacking = False
    for key in (*told, *(key for recording in recordings.values() for key in recording.groups)):
        if key.members:
            known.setdefault(key.name, set()).add(key)
        else:
            lacking = True
    if not lacking:
        return dict(recordings)
    return {rank: _completed(recording, known, world) for rank, recording in recordings.items()}


def _completed(recording: Recording, known: Mapping[str, set[GroupKey]], world: tuple[int, ...]) -> Recording:
    groups = {}
    for key, record in recording.groups.items():
        if not key.members:
            others = [other for other in known.get(key.name, ()) if recording.rank in other.members]
            if len(others) == 1:
                key = others[0]
            elif record.desc == DEFAULT_GROUP:
                key = GroupKey(key.name, world)
        groups[key] = replace(record, key=key)
    return replace(recording, groups=groups)
