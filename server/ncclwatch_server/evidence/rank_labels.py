"""What is known of single ranks, for people only: hosts, devices, phases, and the names of groups.

Digests hold numbers. Names come with full views; those that the judge asked for pass by here, and while somebody
looks at a healthy job's page a few more are asked for, which the judge never sees.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ncclwatch.contract import config
from ncclwatch.contract.groups import digest_in, group_key
from ncclwatch.contract.model.rank import CallSite, GroupView, RankView, ThreadView
from ncclwatch_server.evidence.inspection import Question

NOTES_MAX = 1024
NAMES_MAX = 4096
NAMES_AT_ONCE = 1024  # of groups in one message that are looked at
LISTED_MAX = 4096  # members of a group that is shown though its list is no run
QUESTIONS_MAX = 64
PLACE_MAX = 4096  # of a path and a function
TEXT_MAX = 255  # of a host, a device, a phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNote:
    """The part of a rank's view that a page shows."""

    rank: int
    local_rank: int
    host: str
    pid: int
    device: str
    phase: str
    doing: str  # "in all_reduce", "" if it is in nothing that was recorded
    at: CallSite | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupName:
    """How a process group is called."""

    name: str
    desc: str

    def __str__(self) -> str:
        if self.desc == "default_pg":
            return "default group"
        return f"{self.desc} ({self.name})" if self.desc not in ("", "undefined") else f"group {self.name}"


@dataclass(slots=True, kw_only=True)
class Showing:
    """Notes of one job's ranks and the names of its groups, the newest, bounded."""

    notes: "OrderedDict[int, RankNote]" = field(default_factory=OrderedDict)
    names: dict[int, GroupName] = field(default_factory=dict)  # by the key that digests carry
    _questions: "OrderedDict[Question, None]" = field(default_factory=OrderedDict)

    def expect(self, question: Question) -> None:
        """Note that this was asked for a page. An answer that never comes is forgotten in time."""
        self._questions[question] = None
        while len(self._questions) > QUESTIONS_MAX:
            self._questions.popitem(last=False)

    def asked(self, question: Question) -> bool:
        """Whether a message answers a page's question, which it then no longer does."""
        found = question in self._questions
        self._questions.pop(question, None)
        return found

    def receive_views(self, views: Iterable[RankView]) -> None:
        """Keep what pages show of views, whoever asked for them."""
        left = NAMES_AT_ONCE
        for view in views:
            self.notes.pop(view.rank, None)
            self.notes[view.rank] = _note(view)
            for group in view.groups[:left] if len(self.names) < NAMES_MAX else ():
                left -= 1
                if len(group.name) <= config.NAME_BYTES_MAX and len(group.ranks) <= LISTED_MAX:
                    self.names[group_key(group.name, digest_in(group))] = _name(group)
        while len(self.notes) > NOTES_MAX:
            self.notes.popitem(last=False)


def _name(group: GroupView) -> GroupName:
    return GroupName(name=group.name, desc=group.desc[: config.NAME_BYTES_MAX])


def _note(view: RankView) -> RankNote:
    thread = next((thread for thread in view.threads if thread.main), None)
    return RankNote(
        rank=view.rank,
        local_rank=view.local_rank,
        host=view.host[:TEXT_MAX],
        pid=view.pid,
        device=view.device[:TEXT_MAX],
        phase=view.phase[:TEXT_MAX],
        doing=_doing(thread),
        at=_place(thread),
    )


def _place(thread: ThreadView | None) -> CallSite | None:
    """Return where a thread is, with the end of a path that is too long."""
    if thread is None:
        return None
    site = thread.doing or (thread.wait.site if thread.wait is not None else None)
    if site is None or len(site.file) + len(site.function) <= PLACE_MAX:
        return site
    return replace(site, file=site.file[-PLACE_MAX:], function=site.function[:TEXT_MAX])


def _doing(thread: ThreadView | None) -> str:
    wait = thread.wait if thread is not None else None
    if wait is None:
        return ""
    return f"in {wait.op.value}" if wait.op.value != "unknown" else f"in {wait.kind.value}"
