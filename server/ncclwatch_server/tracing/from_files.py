"""Makes a trace of the files that a job left behind: rings with all that they hold, or Flight Recorder dumps."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.judge import judge
from ncclwatch_server.offline import rings
from ncclwatch_server.offline.answer import incidents_of
from ncclwatch_server.offline.errors import NothingToAnalyze
from ncclwatch_server.offline.gather import Gathered, gather, look_deeper
from ncclwatch_server.tracing.operations import Seen
from ncclwatch_server.tracing.timeline import Known


def known_of(paths: tuple[Path, ...], gathered: Gathered) -> Known:
    """Return what files in these paths tell. Raises `NothingToAnalyze`.

    Rings and dumps tell ages: the trace ends when the newest of the files was written.
    """
    gather(paths, gathered)
    snapshot = gathered.snapshot()
    if not snapshot.ranks:
        raise NothingToAnalyze(
            f"nothing in {', '.join(map(str, paths[:3]))} tells what ranks did; name a directory with rings "
            "(*.ring) or Flight Recorder dumps"
        )
    now_s = max(_written_s(gathered), default=0.0)
    job = paths[0].resolve().name
    incidents = tuple(
        replace(incident, opened_at=now_s, onset_to_open_s=incident.verdict.onset_s, closed_at=None)
        for incident in incidents_of(job, snapshot, judge(snapshot), ())
    )
    look_deeper(gathered, gathered.dumps)
    views = _whole(gathered)
    return Known(
        job=job,
        world_size=max(snapshot.world_size, *(view.rank + 1 for view in views)),
        views=views,
        seen={view.rank: Seen(at_s=now_s, clock=_clock(view)) for view in views},
        now_s=now_s,
        hosts={view.rank: view.host for view in views},
        incidents=incidents,
    )


def _whole(gathered: Gathered) -> tuple[RankView, ...]:
    """Return the views with all operations that the files hold, not only those that the judge needs."""
    lefts = [rings.read(left.path, config.EVENTS_MAX) for left in gathered.rings.values()]
    from_rings = rings.views_of(lefts)
    found = {**gathered.snapshot().ranks, **{rank: _aged(view) for rank, view in from_rings.items()}}
    return tuple(found[rank] for rank in sorted(found))


def _aged(view: RankView) -> RankView:
    """Return a view whose ages count from the moment when the newest ring of its host was left."""
    lag_s = view.news_age_s
    return replace(
        view,
        phase_s=view.phase_s + lag_s,
        history=tuple(replace(op, age_s=op.age_s + lag_s) for op in view.history),
        saves=tuple(
            replace(
                save,
                began_s=save.began_s + lag_s,
                ended_s=save.ended_s + lag_s if save.ended_s is not None else None,
            )
            for save in view.saves
        ),
    )


def _clock(view: RankView) -> str:
    """Return whose clock a view has: rings of one host have one, each dump its own."""
    if view.file is not None and view.file.source != "ring":
        return f"the dump of rank {view.rank}"
    return view.host


def _written_s(gathered: Gathered) -> Iterable[float]:
    for path in (*(left.path for left in gathered.rings.values()), *(dump.path for dump in gathered.dumps.values())):
        try:
            yield Path(path).stat().st_mtime
        except OSError:
            continue
