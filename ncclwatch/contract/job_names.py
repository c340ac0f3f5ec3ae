"""Names of jobs: the one form in which a rank, an agent, the server, its API and the command line write them.

A name in this form is printable, has 1 to 80 characters, and consists of one or more parts with "/" between them. No
part is empty, "." or "..", and the last of several is no word that follows a name in paths of the API: `report`,
`ranks`, `groups`, `stacks`. The first of several parts is the namespace of the job.

Any other text becomes a name of this form: what does not fit is replaced or cut, and a digest of the whole text is
added, so that two texts stay two names.

The directory of a job's rings has the same name, percent-encoded where a file system or the agent's own files want it.
"""

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

from ncclwatch.contract.config import ENV_JOB, ENV_NAMESPACE, JOB_CHARS_MAX

_API_WORDS = frozenset({"report", "ranks", "groups", "stacks"})  # /api/v1/jobs/NAME/ranks
_DIGEST_BYTES = 8
_FILE_NAME_BYTES_MAX = 255
_ESCAPED = re.compile(r"[%/.]")  # the files of the agent beside these directories all have a dot in their names


def from_environment(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name that all ranks of a job share, from what its launcher set.

    torchrun without --standalone calls every run "none", so that word is no name.
    """
    named = environ.get(ENV_JOB, "").strip()
    if named:
        return in_namespace(named, environ)
    if environ.get("SLURM_JOB_ID"):
        return in_namespace(f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}", environ)
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return in_namespace(run_id, environ)
    return in_namespace(f"{environ.get('MASTER_ADDR') or 'localhost'}-{environ.get('MASTER_PORT') or '0'}", environ)


def in_namespace(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the canonical name of a job that is called so, in the namespace that the environment gives to all jobs."""
    space = environ.get(ENV_NAMESPACE, "").strip().strip("/")
    inside = not space or text.strip().startswith(f"{space}/")
    whole = text.strip() if inside else f"{space}/{text.strip()}"
    name = canonical(whole)
    # A long namespace leaves the rest no room: it is kept all the same, since a token may be bound to it.
    return (
        name if not space or namespace(name) == namespace(whole) else canonical(f"{namespace(whole)}/{_digest(whole)}")
    )


def is_named(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `from_environment` has a name that belongs to one job, and not just an address where any job may meet."""
    return bool(
        environ.get(ENV_JOB, "").strip()
        or environ.get("SLURM_JOB_ID")
        or environ.get("TORCHELASTIC_RUN_ID", "none") != "none"
    )


def canonical(text: str) -> str:
    """Return the name of the job that somebody calls so. White space around it does not count."""
    text = text.strip()
    if is_canonical(text):
        return text
    digest = _digest(text)
    kept = "".join(c if c.isprintable() else "_" for c in text[: JOB_CHARS_MAX - len(digest) - 1])
    kept = "/".join("_" if part in ("", ".", "..") else part for part in kept.split("/")) if kept else "job"
    kept = kept[: JOB_CHARS_MAX - len(digest) - 1]  # an empty part has become longer
    while len(to_directory(f"{kept}-{digest}").encode()) > _FILE_NAME_BYTES_MAX:
        kept = kept[:-1]
    return f"{kept}-{digest}"


def _digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def is_canonical(name: str) -> bool:
    """Whether a text is the name of a job as it stands."""
    return (
        1 <= len(name) <= JOB_CHARS_MAX
        and name.isprintable()
        and name == name.strip()
        and not any(part in ("", ".", "..") for part in name.split("/"))
        and ("/" not in name or name.rpartition("/")[2] not in _API_WORDS)
        and len(to_directory(name).encode()) <= _FILE_NAME_BYTES_MAX
    )


def namespace(name: str) -> str:
    """Return what stands before the first "/" of a name, "" where there is none."""
    first, slash, _ = name.partition("/")
    return first if slash else ""


def to_directory(name: str) -> str:
    """Return the name of the directory of a job's rings."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def from_directory(name: str) -> str:
    """Return the name of the job whose rings lie in a directory of this name."""
    return unquote(name, errors="surrogateescape")
