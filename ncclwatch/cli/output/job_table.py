"""Shows jobs and their open incidents, in `status` and, again and again, in `top`."""

from collections.abc import Iterable, Iterator, Mapping

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ncclwatch.cli.client.answers import Incident, Job
from ncclwatch.cli.output.terminal import said, table, word
from ncclwatch.contract.words.aftermath import aftermath_words
from ncclwatch.contract.words.rank_lists import host_list
from ncclwatch.contract.words.text import rank_list, seconds_words

HOSTS_CHARS_MAX = 40
RANKS_CHARS_MAX = 60
_URGENCY = ("hung", "waiting", "running", "ended")
SILENT_S = 5.0  # the server too takes an agent for silent after that


def job_table(jobs: Iterable[Job], rates: Mapping[str, float] | None = None) -> Table:
    """Return a line for each job, the worst first; with `rates`, also its steps per second."""
    columns = ["JOB", "STATE", "RANKS", "HOSTS", "STEPS", *(["STEPS/S"] if rates is not None else []), "OPEN INCIDENTS"]
    rows = []
    for job in worst_first(jobs):
        cells = [
            said(f"{job.title} ({job.id})" if job.title not in ("", job.id) else job.id, "bold"),
            word(job.outcome or job.state),
            said(f"{job.ranks_seen}/{job.world_size}"),
            said(shortened(host_list(node.host for node in job.nodes), HOSTS_CHARS_MAX) or "-"),
            said(str(job.steps)),
        ]
        if rates is not None:
            cells.append(said(f"{rates[job.id]:.2f}" if job.id in rates else "-"))
        rows.append([*cells, said(", ".join(job.open_incidents) or "-")])
    return table(columns, rows)


def worst_first(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs in the order in which a reader needs them: those that hang, that wait, that run, that are over."""
    return sorted(jobs, key=lambda job: (_URGENCY.index(job.state) if job.state in _URGENCY else -1, job.id))


def job_lines(job: Job) -> Iterator[Text]:
    """Yield what there is to say of a job besides: waits, notices, nodes and ranks nobody hears of."""
    if job.state != "ended":
        lost = missing_ranks(job)
        if lost:
            yield _of(job, f"no node speaks for ranks {shortened(lost, RANKS_CHARS_MAX)} of 0-{job.world_size - 1}")
        for node in job.nodes:
            if node.connected and node.quiet_s > SILENT_S:
                ranks = shortened(rank_list(node.ranks), RANKS_CHARS_MAX)
                yield _of(job, f"{node.host} (ranks {ranks}) has been silent for {seconds_words(node.quiet_s)}")
    for sentence in (*job.waiting, *job.notices):
        yield _of(job, sentence)


def incident_lines(incidents: Iterable[Incident]) -> Iterator[RenderableType]:
    """Yield a line for each incident, with its sentence."""
    for incident in incidents:
        came_back = aftermath_words(None, came_back_from=incident.came_back_from)
        head = Text.assemble(
            (f"{incident.id}  ", "bold"), word_upper(incident.severity), "  ", said(f"{incident.job}: "),
            said(incident.summary + (f" ({came_back})" if came_back else "")),
        )  # fmt: skip
        head.overflow = "fold"
        yield Padding(head, (0, 0, 0, 2), expand=False)


def word_upper(severity: str) -> Text:
    """Return a severity as it is shouted."""
    shown = word(severity)
    return Text(shown.plain.upper(), style=shown.style)


def missing_ranks(job: Job) -> str:
    """Return the list of ranks that no connected node speaks for, "" if there are none."""
    if job.state == "ended":
        return ""
    known = {rank for node in job.nodes if node.connected for rank in node.ranks}
    return rank_list(rank for rank in range(job.world_size) if rank not in known)


def shortened(written: str, chars_max: int) -> str:
    """Return a list of ranks or hosts that may be cut, at a comma."""
    if len(written) <= chars_max:
        return written
    kept = written[:chars_max].rpartition(",")[0] or written[:chars_max]
    return f"{kept},..."


def _of(job: Job, sentence: str) -> Text:
    return Text.assemble(said(f"{job.id}: "), said(sentence))
