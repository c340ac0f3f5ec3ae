"""Shows what was seen of jobs: to people as text, to machines as JSON."""

import linecache
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ncclwatch.contract.machine.boot import host_name
from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.stacks.ownership import is_users, is_users_by_path
from ncclwatch.contract.stacks.places import MAIN_THREAD, Place, place_of
from ncclwatch.contract.stacks.tree import Branch, Gang, StackClass, classes, gangs, tree, tree_lines
from ncclwatch.contract.words.text import rank_list, ranks_words, seconds_words
from ncclwatch_agent.diagnose.conclusion import Conclusion
from ncclwatch_agent.diagnose.looks import Motion, Seen
from ncclwatch_agent.diagnose.ranks import FoundJob

SCHEMA = 1
WIDTH = 100
ROLES_MAX = 6  # of other threads, in the text
LINES_MAX = 200  # of one tree, in the text
SOURCE_CHARS_MAX = 90
CHILDREN_SHOWN_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """One rank, as machines read it."""

    rank: int
    pid: int
    motion: Motion
    state: str
    place: Place
    in_kernel: str
    cpu_share: float
    ran: int  # times its main thread ran between the looks; -1: unknown
    children: int
    failure: str  # why there is no stack
    child_places: tuple["ChildAnswer", ...] = ()  # where children stand that it may wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """A process that a rank started."""

    pid: int
    place: Place
    in_kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTree:
    """The merged stacks of the threads of one role."""

    role: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """One job, as machines read it."""

    job: str
    host: str
    world_size: int
    missing: tuple[int, ...]
    elsewhere: int  # ranks of the job that other nodes have
    looked_s: float
    said: tuple[str, ...]
    stands: bool
    gangs: tuple[Gang, ...]
    ranks: tuple[RankAnswer, ...]
    trees: tuple[RoleTree, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All jobs found."""

    schema: int
    jobs: tuple[JobAnswer, ...]


def answer_of(job: FoundJob, seen: Sequence[Seen], conclusion: Conclusion, looked_s: float) -> JobAnswer:
    """Return the answer about one job."""
    distinct = classes(one.dump for one in seen)
    roles = sorted({stack.role for stack in distinct}, key=lambda role: (role != MAIN_THREAD, role))
    return JobAnswer(
        job=job.job.name,
        host=host_name(),
        world_size=job.job.world_size or len(seen),
        missing=job.missing,
        elsewhere=len(job.elsewhere),
        looked_s=round(looked_s, 2),
        said=conclusion.sentences,
        stands=conclusion.stands,
        gangs=gangs({one.rank: one.place for one in seen}),
        ranks=tuple(
            RankAnswer(
                rank=one.rank, pid=one.pid, motion=one.motion, state=one.state.value, place=one.place,
                in_kernel=one.in_kernel, cpu_share=round(one.cpu_share, 3), ran=one.ran, children=one.children,
                failure=_failure(one.dump), child_places=tuple(
                    ChildAnswer(pid=c.pid, place=place_of(c.frames, is_users), in_kernel=c.in_kernel)
                    for c in one.dump.children
                ),
            )
            for one in seen
        ),
        trees=tuple(
            RoleTree(role=role, branches=tree(s for s in distinct if s.role == role)) for role in roles
            if role == MAIN_THREAD or any(_tells(s) for s in distinct if s.role == role)
        ),
    )  # fmt: skip


def lines_of(answer: JobAnswer, looks: int) -> Iterator[str]:
    """Yield the answer as lines: the sentences, who stands where with the odd ones first, and the merged stacks.

    Names in them are as the ranks have chosen them: `words.console` escapes each line.
    """
    ranks = {one.rank: one for one in answer.ranks}
    yield (
        f"job {answer.job}: {ranks_words(ranks)} of {answer.world_size} on {answer.host}, "
        f"{looks} looks in {seconds_words(answer.looked_s)}"
    )
    for sentence in answer.said:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ",
                                 break_on_hyphens=False)  # fmt: skip
    yield ""
    for gang in answer.gangs:
        yield from _gang(gang, [ranks[rank] for rank in gang.ranks])
    for grown in answer.trees[: ROLES_MAX + 1]:
        if grown.branches:
            yield ""
            yield f"stacks of {grown.role}, outermost first:"
            lines = list(tree_lines(grown.branches))
            yield from (f"  {line}" for line in lines[:LINES_MAX])
            if len(lines) > LINES_MAX:
                yield f"  ... {len(lines) - LINES_MAX} more lines, in --json"
    refused: dict[str, list[int]] = {}
    for one in answer.ranks:
        if one.failure:
            refused.setdefault(re.sub(r"\bpid \d+", "their processes", one.failure), []).append(one.rank)
    for why, who in refused.items():
        yield ""
        yield from textwrap.wrap(f"no stack of {ranks_words(who)}: {why}", WIDTH, break_on_hyphens=False)


def _gang(gang: Gang, members: Sequence[RankAnswer]) -> Iterator[str]:
    odd = "  (differs from the others)" if gang.odd else ""
    yield f"  {ranks_words(gang.ranks)} {gang.place.words}{odd}"
    site = gang.place.site
    source = linecache.getline(site.file, site.line).strip() if site is not None else ""
    if source:
        yield f"      > {source[:SOURCE_CHARS_MAX]}"
    alike: dict[str, list[RankAnswer]] = {}
    for one in members:
        alike.setdefault(_condition(one), []).append(one)
    for condition, who in alike.items():
        pids = ",".join(str(one.pid) for one in who[:8]) + (",..." if len(who) > 8 else "")
        whose = "" if len(alike) == 1 else f"{rank_list(one.rank for one in who)}: "
        yield f"      {whose}{condition}; pid{'s' if len(who) > 1 else ''} {pids}"
    for one in members:
        for child in one.child_places[:CHILDREN_SHOWN_MAX]:
            whose = "" if len(members) == 1 else f"{one.rank}: "
            place = f", in {child.in_kernel}" if child.in_kernel else ""
            yield f"      {whose}its child process {child.pid} stands {child.place.words}{place}"


def _condition(one: RankAnswer) -> str:
    said = one.motion.value
    if one.motion in (Motion.STAYS, Motion.BUSY):
        said += f", {one.cpu_share:.0%} of a core" + (f", ran {one.ran} times" if one.ran >= 0 else "")
    said += f", state {one.state}"
    if one.in_kernel:
        said += f", in {one.in_kernel}"
    return said + (f", {one.children} child processes" if one.children else "")


def _tells(stack: StackClass) -> bool:
    """Whether another thread than the main one is worth a line: it runs the user's code or communicates."""
    return any(is_users_by_path(frame.file) or "/torch/distributed/" in frame.file for frame in stack.frames)


def _failure(dump: StackDump) -> str:
    return dump.failure if not dump.threads else ""
