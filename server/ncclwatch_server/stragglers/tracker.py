"""Says what slows one job down now, by its windows, scores, habits of spending and pace.

State is bounded by the world size; time is passed in. A finding stands until its rank has been as early as the
others for some windows: that it flickers helps nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch_server.stragglers.message_windows import MessageWindows
from ncclwatch_server.stragglers.pace import Pace, Slowdown
from ncclwatch_server.stragglers.pipeline_stages import MESSAGES_MIN, Stages
from ncclwatch_server.stragglers.reasons import kinds
from ncclwatch_server.stragglers.reasons.batches import EXPLAINS, Batches, Mixture
from ncclwatch_server.stragglers.reasons.kinds import Spending
from ncclwatch_server.stragglers.reasons.pauses import HORIZON, PAUSES, Pause, Pauses
from ncclwatch_server.stragglers.scores import SPANS, Scores, Suspect
from ncclwatch_server.stragglers.windows import Numbers, Rows, Window, Windows

WARMUP = 1  # windows that are not looked at: loading, compilation, the first use of everything
_WORKS = (SlowKind.COMPUTE, SlowKind.OUTSIDE)  # what big batches look like
_OF_STAGE = (SlowKind.COMPUTE, SlowKind.CPU_CONTENTION, SlowKind.SEQUENCE_IMBALANCE)
FINDINGS_MAX = 4  # of one job at a time
SPANS_MAX = 64  # ranks whose clocks are asked how long a window was
GONE_AFTER = 5  # windows in which a rank is not late beyond its bound any more
PERSISTENT = 0.8  # late in so many of the windows since it began
SETTLED = WARMUP + max(SPANS) + GONE_AFTER  # windows after which it has found what it will find
LATE_AGAIN = 1.0  # standard deviations, in one window
TOGETHER = 0.5  # of one another's lateness: ranks that are late for one reason are late by like amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that makes a job slower than it could be."""

    kind: SlowKind
    ranks: tuple[int, ...]  # late ones; (): none is
    share: float  # of the job's time that is lost
    since: float  # on the clock that was passed in
    lost_s: float
    waiting: int  # ranks that wait for these
    windows: int  # seen since it began
    late_in: int  # of them
    severe: bool  # worth a warning
    excess: Mapping[SlowKind, float] = field(default_factory=dict)  # of the first rank
    usual: Mapping[SlowKind, float] = field(default_factory=dict)
    slowdown: Slowdown | None = None
    stage: tuple[int, ...] = ()  # the ranks of a stage that the others wait for
    mixture: Mixture | None = None  # of the first rank's batches
    by_messages: bool = False  # measured by waits for messages
    by_pauses: bool = False  # recorded pauses of its kind come together with the others' wait
    missed: int = 0  # windows in a row without it

    @property
    def persistent(self) -> bool:
        """Whether it is there nearly all of the time."""
        return self.late_in >= PERSISTENT * self.windows


class Stragglers:
    """What is known of the pace of one job's ranks."""

    def __init__(self, world_size: int) -> None:
        self._windows = Windows(world_size)
        self._messages = MessageWindows()
        self._scores = Scores(world_size)
        self._spending = Spending(world_size)
        self._pauses = Pauses(world_size)
        self._pace = Pace()
        self._stages = Stages()
        self.batches = Batches()
        self._seen = self._steps = 0
        self._at = 0.0
        self._found: dict[tuple[SlowKind, tuple[int, ...]], Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what stands, the most costly first."""
        return tuple(sorted(self._found.values(), key=lambda finding: -finding.share))

    @property
    def is_settled(self) -> bool:
        """Whether what is slow since the first window is found by now."""
        return self._seen >= SETTLED

    def add_rows(self, rows: Rows, rank: Numbers, now: float) -> bool:
        """Add the newest rows of the ranks that live. Returns whether a window has ended, so that findings are new."""
        window = self._windows.cut(rows, rank) or self._messages.cut(rows, rank, now)
        if window is None:
            return False
        self._spending.add_rows(rows, rank, now)
        passed_s, self._at = now - self._at, now
        self._seen += 1
        if self._seen <= WARMUP:
            return False
        waited = self._with_messages(window)
        suspects = self._scores.score(waited)[: FINDINGS_MAX * 4]
        slow = dict(zip(rank.tolist(), rows["gpu_slow"].tolist(), strict=True)) if len(suspects) else {}
        new = [self._finding(window, suspect, slow.get(suspect.rank, 0), now) for suspect in suspects]
        pauses = self._pauses.add_window(waited, self._spending.newest_s(PAUSES, window.rank), passed_s)
        new = [each for each in new if not self._drawn(waited, each)]
        known = {suspect.rank for suspect in suspects}
        new += [self._held_up(window, pause, now) for pause in pauses[:FINDINGS_MAX] if pause.rank not in known]
        # Stages of a pipeline are unlike on purpose: one that computes longer has no bad machine.
        staged = [_as_stage(each, now) for each in new if window.by_messages and each.kind in _OF_STAGE]
        new = [each for each in new if not (window.by_messages and each.kind in _OF_STAGE)]
        self._keep(_together(new), passed_s)
        ongoing = *staged, self._stage(window, now), self._slowdown(rows, window, now)
        self._keep_of_all([finding for finding in ongoing if finding is not None], now, late=bool(new))
        return True

    def _with_messages(self, window: Window) -> Window:
        """Return a window in which who waited for messages was blocked too: it is late for who kept it waiting."""
        if window.by_messages:
            return window
        messages = self._spending.messages(window.rank)
        if float(messages.max()) < MESSAGES_MIN:
            return window
        return replace(window, blocked=np.minimum(1.0, window.blocked + messages))

    def _drawn(self, window: Window, finding: Finding) -> bool:
        """Whether a rank waited for large items of its loader that any rank may draw."""
        return finding.kind is SlowKind.DATA_LOADING and self._pauses.by_chance(window, finding.ranks[0])

    def _held_up(self, window: Window, pause: Pause, now: float) -> Finding:
        """Return a rank whose recorded pauses explain the others' wait."""
        excess = self._spending.excess(pause.rank, kinds.members(window.home, window.rank, pause.rank))
        windows = min(self._seen, HORIZON)
        span_s = float(window.span_s[window.rank == pause.rank][0])
        return Finding(
            kind=pause.kind,
            ranks=(pause.rank,),
            share=pause.share,
            since=now - span_s * windows,
            lost_s=pause.share * span_s * windows,
            waiting=len(window.rank) - 1,
            windows=windows,
            late_in=round(pause.often * windows),
            severe=pause.severe,
            excess=excess,
            usual={each: self._spending.share(each, pause.rank) - excess[each] for each in excess},
            by_pauses=True,
        )

    def _finding(self, window: Window, suspect: Suspect, gpu_slow: int, now: float) -> Finding:
        like = kinds.members(window.home, window.rank, suspect.rank)
        excess = self._spending.excess(suspect.rank, like)
        late, sigmas = self._scores.history(suspect.rank)
        recent = slice(-suspect.windows, None)
        spans_s = float(window.span_s[window.rank == suspect.rank][0])
        kind = kinds.kind_of(suspect.share, excess, gpu_slow)
        mixture = self.batches.mixture(suspect.rank, like.tolist())
        if kind in _WORKS and mixture is not None and mixture.by_batches >= EXPLAINS:
            kind = SlowKind.SEQUENCE_IMBALANCE
        return Finding(
            kind=kind,
            ranks=(suspect.rank,),
            share=suspect.share,
            since=now - spans_s * suspect.windows,
            lost_s=float(late[recent].clip(min=0.0).sum()) * spans_s,
            waiting=len(window.rank) - 1,
            windows=suspect.windows,
            late_in=int((sigmas[recent] > LATE_AGAIN).sum()),
            # Of two that only exchange messages one may be there to wait for the other.
            severe=suspect.share >= suspect.warn_min and not (window.by_messages and len(window.rank) == 2),
            by_messages=window.by_messages,
            excess=excess,
            usual={each: self._spending.share(each, suspect.rank) - excess[each] for each in excess},
            mixture=mixture,
        )

    def _keep(self, new: list[Finding], passed_s: float) -> None:
        """Go on with the findings that are there again, and let go of those that have not been for some windows."""
        for finding in new:
            known = next((each for each in self._found.values() if set(each.ranks) & set(finding.ranks)), None)
            if known is None:
                if len(self._found) < FINDINGS_MAX:
                    self._found[finding.kind, finding.ranks] = finding
                continue
            del self._found[known.kind, known.ranks]
            again = self._again(known, finding, passed_s)
            self._found[again.kind, again.ranks] = again
        seen = {rank for finding in new for rank in finding.ranks}
        for key, finding in list(self._found.items()):
            if not finding.ranks or seen & set(finding.ranks):
                continue
            late, _ = self._scores.history(finding.ranks[0])
            missed = finding.missed + 1
            if missed >= GONE_AFTER:
                del self._found[key]
                continue
            lost_s = finding.lost_s + max(0.0, float(late[-1])) * passed_s
            self._found[key] = replace(finding, missed=missed, windows=finding.windows + 1, lost_s=lost_s)

    def _again(self, known: Finding, seen: Finding, passed_s: float) -> Finding:
        late, sigmas = self._scores.history(seen.ranks[0])
        return replace(
            seen,
            since=known.since,
            # What was said is not taken back for a moment's uncertainty.
            kind=known.kind if seen.kind is SlowKind.OUTSIDE else seen.kind,
            severe=known.severe or seen.severe,
            lost_s=known.lost_s + max(0.0, float(late[-1])) * passed_s,
            windows=known.windows + 1,
            late_in=known.late_in + int(sigmas[-1] > LATE_AGAIN),
        )

    def _stage(self, window: Window, now: float) -> Finding | None:
        """Return the stage of a pipeline that all others wait for."""
        stage = self._stages.compare(window, self._spending.messages(window.rank))
        if stage is None:
            return None
        return Finding(
            kind=SlowKind.PIPELINE_IMBALANCE, ranks=(), stage=stage.ranks, share=stage.more, since=now, lost_s=0.0,
            waiting=len(window.rank) - len(stage.ranks), windows=1, late_in=1, severe=False,
        )  # fmt: skip

    def _slowdown(self, rows: Rows, window: Window, now: float) -> Finding | None:
        """Return the moment since which all steps take longer."""
        if window.by_messages:
            return None  # cut by time
        steps = int(rows["steps"].max(initial=0))
        stepped, self._steps = steps > self._steps or steps == 0, steps
        if not stepped:
            return None  # a validation, say: its operations are others
        longest = int(np.argmax(window.span_s))
        home = np.flatnonzero(window.home == window.home[longest])
        # All of one group cut at the same operations, each by its own clock: a few of them tell.
        span_s = float(np.median(window.span_s[home[:SPANS_MAX]]))
        per_operation_s = span_s / max(1, int(window.operations[longest]))
        change = self._pace.add_window(now, per_operation_s, float(window.blocked[home].min()))
        if change is None:
            return None
        share = 1.0 - 1.0 / change.ratio
        # That the program itself has not changed, nobody here can know: told, and nobody is woken.
        return Finding(
            kind=SlowKind.NETWORK if change.in_network else SlowKind.FAIL_SLOW, ranks=(), share=share,
            since=change.since, lost_s=0.0, waiting=len(window.rank), windows=1, late_in=1,
            severe=False, slowdown=change,
        )  # fmt: skip

    def _keep_of_all(self, new: list[Finding], now: float, *, late: bool) -> None:
        """Go on with what concerns all ranks. A late rank explains slow steps, and a stage that works."""
        before = {finding.kind: finding for finding in self._found.values() if not finding.ranks}
        self._found = {key: finding for key, finding in self._found.items() if finding.ranks}
        for finding in new:
            if late or len(self._found) >= FINDINGS_MAX:
                return
            known = before.get(finding.kind)
            since = min(known.since, finding.since) if known is not None else finding.since
            lost_s = finding.share * (now - since)
            self._found[finding.kind, ()] = replace(finding, since=since, lost_s=lost_s)


def _as_stage(finding: Finding, now: float) -> Finding:
    """Return a rank that computes while others wait for its messages as a stage of a pipeline that has more to do."""
    return replace(
        finding, kind=SlowKind.PIPELINE_IMBALANCE, stage=finding.ranks, ranks=(), since=now, lost_s=0.0, severe=False
    )


def _together(found: list[Finding]) -> list[Finding]:
    """Return findings of one kind and of like size as one: eight ranks of a node whose cores are taken."""
    merged: list[Finding] = []
    for finding in found:
        like = next(
            (each for each in merged if each.kind is finding.kind and finding.share >= TOGETHER * each.share), None
        )
        if like is None:
            merged.append(finding)
            continue
        place = merged.index(like)
        merged[place] = replace(like, ranks=tuple(sorted((*like.ranks, *finding.ranks))), waiting=like.waiting - 1)
    return merged[:FINDINGS_MAX]
