"""Holds everything the watch loop needs to know of one attempt of one job."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ncclwatch.contract import config
from ncclwatch.contract.machine import boot
from ncclwatch.contract.model.job import Contact, JobSnapshot, QuietNode
from ncclwatch.contract.model.rank import Ending, StackDump
from ncclwatch.contract.model.testimony import Communicator, Testimony
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch.contract.on_hang.hangs import Hangs
from ncclwatch.contract.wire import Announce
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link, no_contact
from ncclwatch_server.evidence.inspection import Inspection
from ncclwatch_server.evidence.probes import Node, Probes
from ncclwatch_server.evidence.rank_labels import Showing
from ncclwatch_server.evidence.stack_collection import Gathering
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.incidents.confirmation import Confirmation
from ncclwatch_server.jobs.history_requests import HistoryRequest
from ncclwatch_server.jobs.hook_grants import HookGrants
from ncclwatch_server.jobs.outcome import End
from ncclwatch_server.jobs.room import Opener
from ncclwatch_server.jobs.stack_requests import Capture
from ncclwatch_server.state.dataloaders import Loops
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.state.owners import Speaker
from ncclwatch_server.state.rank_setup import Likeness
from ncclwatch_server.state.suspicion import Suspicion
from ncclwatch_server.state.waits.learning import Patience
from ncclwatch_server.stragglers.closely import Closely
from ncclwatch_server.stragglers.tracker import Stragglers

HEARD_S = 0.5  # for which it is taken for granted that somebody speaks for a job, or that nobody does


@dataclass(slots=True, kw_only=True)
class KeptCapture:
    """A capture of a hang that agents act on."""

    begun_at: float  # by the clock of the watch
    words: str = ""  # where it is, or why there is none; "": it is being written
    place: str = ""  # HOST:PATH, "" while there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One connection's part in a job."""

    link: Link
    index: int  # the job's number on that connection
    terminal: bool
    acts: bool = False  # its agent acts on hangs, for the owner of the job
    addresses: tuple[str, ...] = ()  # of its node
    lost: bool = False

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.lost and not self.link.closing


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """What the first agent of a job said of how it was started, for people."""

    named: bool = True  # False: its name is only an address, where other jobs meet at other times
    title: str = ""  # its batch job or its script, where nobody has named it
    command: str = ""
    user: str = ""
    labels: str = ""
    elsewhere: bool = False  # its ranks run on several nodes
    at: float = 0.0  # when it was heard of, in seconds since 1970

    @classmethod
    def of(cls, said: Announce, at: float) -> "LaunchFacts":
        """Return what an announcement says, bounded."""
        return cls(
            named=said.named,
            title=said.title[: config.TITLE_CHARS_MAX],
            command=said.command[: config.COMMAND_CHARS_MAX],
            user=said.user[: config.TITLE_CHARS_MAX],
            labels=said.labels[: config.LABELS_CHARS_MAX],
            elsewhere=said.elsewhere,
            at=at,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One attempt of one job, with everything the watch loop needs to know of it."""

    id: str  # the name it is listed under
    key: JobKey
    state: JobState
    known_since: float
    launch_facts: LaunchFacts = field(default_factory=LaunchFacts)
    remarks: tuple[str, ...] = ()  # for people, on how its ranks report
    agents: dict[str, int] = field(default_factory=dict)  # that have spoken for ranks of it, newest last: their run
    replaced: bool = False  # another attempt or run has taken its place
    past_runs: dict[str, int] = field(default_factory=dict)  # likewise, of runs of this launch that are over
    past_machines: frozenset[tuple[str, str]] = frozenset()  # of agents of those runs, with whose token they came
    counts: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # of agents that count another attempt: that and its run
    served: dict[int, Served] = field(default_factory=dict)  # by number of the connection
    inspection: Inspection = field(default_factory=Inspection)
    confirmation: Confirmation = field(default_factory=Confirmation)
    suspicion: Suspicion = field(default_factory=Suspicion)
    loops: Loops = field(default_factory=Loops)
    likeness: Likeness = field(default_factory=Likeness)
    stragglers: Stragglers = field(init=False)
    closely: Closely = field(default_factory=Closely)
    paced_at: float = float("-inf")  # when that was looked at last
    gathering: Gathering | None = None
    stacks: dict[int, StackDump] = field(default_factory=dict)  # newest, for the judge
    probes: Probes = field(default_factory=Probes)
    testimonies: dict[int, Testimony] = field(default_factory=dict)  # newest, for the judge
    communicators: tuple[Communicator, ...] = ()  # likewise
    captures: list[Capture] = field(default_factory=list)  # stacks that readers have asked for
    histories: list[HistoryRequest] = field(default_factory=list)  # views that they have asked for
    hangs_since: dict[str, float] = field(default_factory=dict)  # open hangs, since when they are known to stand
    hangs_told: dict[int, Hangs] = field(default_factory=dict)  # to agents that act, by number of the connection
    kept_captures: dict[str, KeptCapture] = field(default_factory=dict)  # by the incident that they are of
    hooks: HookGrants = field(default_factory=HookGrants)
    waiting: tuple[Verdict, ...] = ()  # for ranks that work: shown, and no hang
    patience: Patience = field(default_factory=Patience)
    looked_at: float = float("-inf")
    stirred: bool = True  # there was news other than digests since, or something is under way
    quiet: bool = False  # nothing was to be seen of it at the last look, and for a while before
    suspicious_at: float = float("-inf")  # when it was so last
    judge_failing: bool = False  # told already
    look_failing: bool = False
    showing: Showing = field(default_factory=Showing)
    hung_s: float = 0.0  # for how long critical incidents of it have been open
    went_on_at: float | None = None  # in seconds since 1970, of one that was started again: all ranks had come together
    recovery_noted: bool = False  # in the incidents of the attempts before
    over_at: float | None = None
    ended: bool = False  # over, and judged for the last time
    given_up: bool = False  # ended so although ranks of it had not, as far as anybody knows
    came_back: bool = False  # it had been given up
    end: End = field(default_factory=End)  # how, once it has
    astray: bool = False  # its ranks say another number of ranks than those of the job that is listed
    opener: Opener | None = None  # who began it
    announced: Counter[str] = field(default_factory=Counter)  # its ranks that were seen, by whom they count for
    claims: set[tuple[str, str, str]] = field(default_factory=set)  # of strangers that were written down
    floor: int = -1  # attempts up to this one are over
    heirs: frozenset[str] = frozenset()  # agents of the attempt before: this one is theirs

    _heard: tuple[float, bool] = (float("-inf"), False)  # when it was looked at last whether it is spoken for

    def __post_init__(self) -> None:
        self.stragglers = Stragglers(self.state.world_size)

    @property
    def world_size(self) -> int:
        """Return how many ranks the job has."""
        return self.state.world_size

    @property
    def seen(self) -> int:
        """Return how many of its ranks were seen."""
        return self.state.seen_count

    @property
    def gpus(self) -> int:
        """Return how many of its ranks have a GPU of their own, as far as they have said."""
        told = self.state.picture(0.0)
        return len(set(told.row_rank[told.ranks["device"] != 0].tolist()))

    @property
    def saved(self) -> bool:
        """Return whether any rank has recorded a save that is over."""
        return bool(self.state.picture(0.0).ranks["save_ms"].any())

    @property
    def accounts(self) -> tuple[str, ...]:
        """Return for whom it counts, besides all."""
        return self.opener.accounts if self.opener is not None else ()

    @property
    def machines(self) -> frozenset[tuple[str, str]]:
        """On which machines agents have spoken for it or a run before, as far as they say, each with their token."""
        now = {(each.machine, each.token) for each in self.state.owners.speakers().values() if each.machine}
        return self.past_machines | now

    def lacks(self, ranks: Sequence[int], speaker: Speaker, now: float) -> bool:
        """Whether it may have these ranks, and each was never seen, or lives and its agent may be this one."""
        if not ranks or max(ranks) >= self.world_size:
            return False
        state = self.state
        known = [rank for rank in ranks if state.seen[rank]]
        if state.ended[known].any():
            return False
        return state.owners.may_follow(known, speaker, lambda number: state.standing(number, now))

    def goes_on(self, now: float) -> bool:
        """Whether no rank of it has ended, and some are heard of."""
        if self.state.ended.any():
            return False
        if not 0.0 <= now - self._heard[0] < HEARD_S:  # to look costs milliseconds where there are thousands of nodes
            self._heard = now, self.state.is_spoken_for(now)
        return self._heard[1]

    @property
    def stands_beside(self) -> bool:
        """Whether another job has its name, perhaps of the same launch."""
        return self.id != self.key.name

    @property
    def launch(self) -> tuple[str, str]:
        """Return what its attempts have in common."""
        return self.key.name, self.key.instance

    def belongs_to(self, agent: str) -> bool:
        """Whether this attempt is one of an agent of the attempt before, and no such agent has spoken in it yet."""
        return agent in self.heirs and not any(each in self.heirs for each in self.agents)

    def note_agent(self, agent: str, run: int) -> None:
        """Remember who has spoken for ranks: as many as may be on its nodes, and those that came after them."""
        self.agents.pop(agent, None)
        self.agents[agent] = run
        while len(self.agents) > self._agents_max:
            del self.agents[next(iter(self.agents))]

    def runs_from(self, agent: str) -> int:
        """Return the lowest number that a run of this launch has by now, in the count of an agent."""
        return self.agents.get(agent, self.past_runs.get(agent, -1) + 1)

    def note_past(self, before: "Job") -> None:
        """Remember which runs are over, as this job takes the place of another one."""
        known = {**self.past_runs, **before.past_runs, **before.agents}
        self.past_runs = dict(list(known.items())[-self._agents_max :])
        machines = [*(self.past_machines | before.past_machines), *before.machines]
        self.past_machines = frozenset(machines[-self._agents_max :])

    @property
    def _agents_max(self) -> int:
        return limits.AGENTS_PER_RANK_MAX * self.world_size + 16

    @property
    def notices(self) -> tuple[str, ...]:
        """What people should know of how its ranks report."""
        claims = self.state.contested
        if not claims:
            return self.remarks
        newest = max(claims)
        ranks, claimant = claims[newest], self.served.get(newest)
        owner = self.served.get(self.state.owner(ranks[0]))
        hosts = [served.link.host if served is not None else "another node" for served in (claimant, owner)]
        said = (
            f"the agent on {hosts[0]} claims {ranks_words(ranks)}, of which the one on {hosts[1]} speaks: the second "
            "claim does not count while the first agent reports; stop whichever is a leftover"
        )
        return (*self.remarks, said)

    def unheard_nodes(self, now: float) -> str:
        """Return that ranks of other nodes do not report here, "" if they do or may still come."""
        hosts = {served.link.host for served in self.served.values()}
        late = now - self.known_since > limits.NODES_LATE_S
        if self.ended or not (self.launch_facts.elsewhere and late and len(hosts) == 1 and self.seen < self.world_size):
            return ""
        return (
            f"of {self.world_size} ranks only those on {hosts.pop()} report to this server; the others run on other "
            f"nodes. Let all nodes report to one server: {config.ENV_SERVER}, or --server of `ncclwatch run`"
        )

    def living(self) -> tuple[Served, ...]:
        """Return the connections that speak for ranks and can be asked, the one with the lowest rank first."""
        alive = [(self.state.ranks_of(number)[:1], served) for number, served in self.served.items() if served.alive]
        return tuple(served for _, served in sorted((each for each in alive if each[0]), key=lambda each: each[0]))

    def settle(self, now: float) -> None:
        """Note that it was looked at, and whether it may be looked at in its turn only from now on."""
        self.looked_at = now
        busy = self.suspicion or self.gathering is not None or self.over_at is not None or self.inspection.asking
        self.stirred = self.stirred or bool(busy)
        calm_s = now - max(self.suspicious_at, self.known_since)
        told = bool(self.suspicion.unheard or self.waiting or self.captures)
        self.quiet = not (busy or told or self.likeness.pending) and calm_s > limits.CALM_S

    def is_partial(self, now: float) -> bool:
        """Whether it is too early to judge: some ranks, or nodes after a restart, are still to come."""
        return not self.state.seen.all() and now - self.known_since < limits.PARTIAL_S

    def forget_links(self) -> None:
        """Forget connections that broke, and for all ranks of which another one speaks."""
        if len(self.served) > self.state.links:
            self.served = {number: served for number, served in self.served.items() if self.state.knows(number)}

    def deserted(self, now: float) -> bool:
        """Whether no connection has spoken for it for a long time."""
        self.forget_links()
        if any(served.alive for served in self.served.values()):
            return False
        quiet_s = min((self.state.heard_ago_s(number, now) for number in self.served), default=0.0)
        return quiet_s > limits.ABANDONED_S

    def snapshot(self, now: float) -> JobSnapshot:
        """Return what the judge gets to see of it."""
        found = self.inspection.snapshot(
            self.id, self.world_size, self.suspicion, dict(self.stacks), now - self.known_since, now
        )
        quiet = self._quiet_nodes(now)
        known = frozenset(self.state.seen.nonzero()[0].tolist())
        detached = self.suspicion.detached  # what they did before says nothing of what they do
        found = replace(
            found,
            ranks={rank: view for rank, view in found.ranks.items() if rank not in detached},
            silent={**found.silent, **dict.fromkeys(detached, 0.0)},
        )
        return replace(
            found,
            unasked=known.difference(found.ranks, found.silent),
            habits=self.patience.habits,
            under_way=self.patience.under_way,
            testimonies=dict(self.testimonies),
            communicators=self.communicators,
            setup=self.likeness.setup,
            quiet_nodes=quiet,
            cut_off_host=self._host_alone(quiet),
        )

    def _quiet_nodes(self, now: float) -> tuple[QuietNode, ...]:
        """Return the nodes of the ranks that are silent, with what is to be seen of them."""
        found = []
        for number, ranks in self._silent_by_link().items():
            served = self.served.get(number)
            if served is None:
                continue
            contact, contact_s = served.link.contact() if not served.link.closing else no_contact()
            reached_from = self.probes.reached_from(number, now) if contact is Contact.MUTE else ""
            found.append(
                QuietNode(
                    host=served.link.host, ranks=ranks, silent_s=self.suspicion.silent[ranks[0]],
                    contact=Contact.REACHED if reached_from else contact, contact_s=contact_s,
                    reached_from=reached_from,
                )
            )  # fmt: skip
        return tuple(found)

    def _silent_by_link(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for rank in sorted(self.suspicion.silent):
            found.setdefault(self.state.owner(rank), []).append(rank)
        return {number: tuple(ranks) for number, ranks in found.items()}

    def probe(self, now: float) -> None:
        """Have other nodes try to reach those that are silent, now and then. Where no rank waits, none is lost."""
        if not (self.suspicion.silent and self.suspicion.waiting and self.probes.due(now)):
            return
        silent = self._silent_by_link()
        nodes = {
            number: Node(link=served.link, index=served.index, first=first, addresses=served.addresses)
            for number, first in self.state.owners.first_ranks().items()
            if (served := self.served.get(number)) is not None and (served.alive or number in silent)
        }
        self.probes.ask(
            [node for number, node in nodes.items() if number in silent and self._may_be_mute(number)],
            [node for number, node in nodes.items() if number not in silent],
            now,
        )

    def _may_be_mute(self, number: int) -> bool:
        """Whether the kernel of a node may acknowledge nothing. What a connection has shown that ended is known."""
        served = self.served[number]
        return not served.lost or served.link.contact()[0] is Contact.MUTE

    def _host_alone(self, quiet: tuple[QuietNode, ...]) -> str:
        """Return the name of this server's own host if no other one of the job reports, "" otherwise."""
        if not quiet:
            return ""
        silent = {node.host for node in quiet}
        reporting = [each.link for each in self.served.values() if not each.lost and each.link.host not in silent]
        alone = len({link.host for link in reporting}) == 1 and reporting[0].machine == boot.machine()
        return reporting[0].host if alone else ""

    def counted(self, verdict: Verdict) -> Verdict:
        """Return a verdict with the count of all ranks that it explains; the judge saw some of a big job only."""
        found = self.state.explained_by(culprit.rank for culprit in verdict.culprits)
        return replace(verdict, explained=found) if found is not None else verdict

    def endings(self) -> tuple[Ending | None, ...]:
        """Return how each rank that was seen has ended, None where nobody saw how."""
        views = (self.inspection.view(rank) for rank in self.state.seen.nonzero()[0].tolist())
        return tuple(view.ending if view is not None else None for view in views)

    def release(self) -> None:
        """Note that it was judged for the last time, and let go what only judging needs."""
        self.ended, self.given_up = True, not self.state.over
        self.inspection, self.confirmation = Inspection(), Confirmation()
        self.gathering, self.stacks, self.waiting = None, {}, ()
        self.testimonies, self.communicators = {}, ()
        self.suspicion, self.loops, self.likeness = Suspicion(), Loops(), Likeness()
        self.stragglers, self.closely, self.probes = Stragglers(0), Closely(), Probes()
