"""Labels of a job: what a site sorts its jobs by, such as team, account and queue.

They travel as one text, `team=vision,run=42`. People write it in NCCLWATCH_LABELS; what the scheduler says is added.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from ncclwatch.contract.config import ENV_LABELS, LABELS_CHARS_MAX

# The variables of Slurm (sbatch(1), output environment variables) that say for whom a job runs, and where.
_OF_SCHEDULER = {"account": "SLURM_JOB_ACCOUNT", "partition": "SLURM_JOB_PARTITION", "qos": "SLURM_JOB_QOS"}


def from_environment(environ: Mapping[str, str] = os.environ) -> str:
    """Return the labels of the job that is started with this environment. What people write comes first."""
    written = environ.get(ENV_LABELS, "")
    known = parse(written)
    more = (f"{name}={environ[key]}" for name, key in _OF_SCHEDULER.items() if environ.get(key) and name not in known)
    parts = [part for part in (written.strip().strip(","), *more) if part]
    text = ""
    for part in parts:  # none is cut in the middle, unless what people wrote is too long by itself
        longer = f"{text},{part}" if text else part[:LABELS_CHARS_MAX]
        text = longer if len(longer) <= LABELS_CHARS_MAX else text
    return text


def parse(text: str) -> dict[str, str]:
    """Return the labels of a text by name; a part without "=" is a name without a value."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}


def metric_names(texts: Iterable[tuple[str, str]], most: int) -> dict[str, str]:
    """Return for names of labels what they are called in Prometheus, for at most so many.

    `texts` are namespaces of jobs and their labels. First come the names that jobs of the most namespaces have, so that
    one of them cannot crowd out what all use; then those of the most jobs. In Prometheus a name has letters, digits and
    "_" alone. Of two that become one, the first is kept.
    """
    jobs = Counter[str]()
    spaces: dict[str, set[str]] = {}
    for space, text in texts:
        for name in parse(text):
            jobs[name] += 1
            spaces.setdefault(name, set()).add(space)
    found: dict[str, str] = {}
    for name in sorted(jobs, key=lambda name: (-len(spaces[name]), -jobs[name], name)):
        found.setdefault("job_label_" + re.sub("[^A-Za-z0-9_]", "_", name), name)
    return {name: called for called, name in list(found.items())[:most]}


def match(text: str, wanted: Sequence[str]) -> bool:
    """Say whether a job with these labels has all that are wanted: `NAME`, or `NAME=PATTERN` as in a shell."""
    if not wanted:  # nearly always, and thousands of jobs are asked about
        return True
    known = parse(text)
    pairs = (each.partition("=") for each in wanted)
    return all(
        name.strip() in known and (not equals or fnmatchcase(known[name.strip()], pattern.strip()))
        for name, equals, pattern in pairs
    )
