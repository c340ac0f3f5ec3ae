"""The settings and limits that all three places share.

Every setting has one environment variable and a right default. Every limit is named
here and enforced where the thing grows.
"""

import os
from collections.abc import Mapping

PROTOCOL = 7  # of the wire between agent and server; a server refuses any other with a sentence
DEFAULT_PORT = 8470

# Environment of a rank.
ENV_SERVER = "NCCLWATCH_SERVER"  # URL of the server, or of several: "URL,URL"; default http://$MASTER_ADDR:8470
ENV_SERVER_OWN = "NCCLWATCH_SERVER_OWN"  # the same URL, if a program of ours started that server for this user
ENV_SHARE = "NCCLWATCH_SHARE"  # "0": no server is started for a job on several nodes
ENV_JOB = "NCCLWATCH_JOB"  # name of the job; default from the launcher
ENV_NAMESPACE = "NCCLWATCH_NAMESPACE"  # a name of a job that does not begin with "NAMESPACE/" is given that
ENV_HOST = "NCCLWATCH_HOST"  # what this host is called in verdicts, such as node/pod; default its host name
ENV_DISABLE = "NCCLWATCH_DISABLE"  # "1": attach() does nothing
ENV_ANY_TORCH = "NCCLWATCH_ANY_TORCH"  # "1": attach() also to a torch that is older than any it was tried with
ENV_AGENT = "NCCLWATCH_AGENT"  # "0": ranks start no agent; an administrator runs one as a service
ENV_RUNTIME_DIR = "NCCLWATCH_RUNTIME_DIR"  # where rings live, in memory; default /dev/shm
ENV_NATIVE = "NCCLWATCH_NATIVE"  # "0": Python alone; "1": native one, with a warning where it is not built
ENV_NATIVE_DIR = "NCCLWATCH_NATIVE_DIR"  # where builds of the native recorder lie; default ~/.cache/ncclwatch
ENV_WITNESS = "NCCLWATCH_WITNESS"  # "0": ranks start no worker server; nobody asks torch's Flight Recorder
ENV_LABELS = "NCCLWATCH_LABELS"  # "team=vision,run=42": shown with the job, and searched
ENV_RESTARTS = "NCCLWATCH_RESTARTS"  # set by `ncclwatch run`: how often it has started this command again
ENV_ON_HANG = "NCCLWATCH_ON_HANG"  # what is done about a hang: report, capture, raise, abort, restart or policy
ENV_HANG_POLICY = "NCCLWATCH_HANG_POLICY"  # file with that policy
ENV_NOTES = "NCCLWATCH_NOTES"  # "1": verdicts are noted in the runs of experiment trackers that the script has open
ENV_CAPTURES = "NCCLWATCH_CAPTURES"  # directory in which `ncclwatch run` keeps its captures of hangs
ENV_TERMINAL = "NCCLWATCH_TERMINAL"  # "0": the agent prints no verdict on the job's terminal
ENV_TOKEN = "NCCLWATCH_TOKEN"  # bearer token of a protected server, for everything; each of these has a ..._FILE too
ENV_TOKEN_FILE = "NCCLWATCH_TOKEN_FILE"
ENV_AGENT_TOKEN = "NCCLWATCH_AGENT_TOKEN"  # the same for agents only
ENV_VIEWER_TOKEN = "NCCLWATCH_VIEWER_TOKEN"  # for those who only read
ENV_OPERATOR_TOKEN = "NCCLWATCH_OPERATOR_TOKEN"  # for those who also ask for stacks and delete
ENV_NOTIFY = "NCCLWATCH_NOTIFY"  # file with the targets of a server's alerts
ENV_CA_FILE = "NCCLWATCH_CA_FILE"  # certificates that agents and the command line trust, for https:// servers

EVEN_BATCHES_GROUP = "ncclwatch even_batches"  # description of the groups in which even_batches agrees

# How the address of a server came about. Only a server that somebody named is shown a token and may be on another
# machine; any other must prove that it belongs to the same user, or to root, before it hears a word.
NAMED = "1"  # a user wrote it
UNNAMED = "0"  # nobody did: it is the default
SHARED = "shared"  # nobody did, and the job runs on several nodes: its agents are told through its store
OWN = "own"  # a program of ours started it for this user, and wrote it

# Limits of a ring.
EVENTS_MAX = 8192
GROUPS_MAX = 512
THREADS_MAX = 32
THREADS_KEPT = THREADS_MAX // 2  # rows from which on a new thread takes that of one that has ended
PEERS_MAX = 512
LOADERS_MAX = 32
METERS_MAX = 64  # groups in which it is measured how long a rank is blocked: the first ones
BUCKETS_MAX = 512  # data buckets of all loaders
COSTS_MAX = 32  # data buckets of a rank whose cost is told
BUCKETS_PER_LOADER_MAX = 64  # beyond, batches of further shapes are counted together
STRINGS_BYTES_MAX = 408 * 1024
STRINGS_KEPT_BYTES = 152 * 1024  # of these, for what must be known of a full table too: groups' names, the rank's end
MEMBERS_BYTES_MAX = 128 * 1024  # of the lists of members of all groups, as `members.pack` writes them
TOLD_BYTES_MAX = 8 * 1024  # of a JSON text in the table of strings
NAME_BYTES_MAX = 128  # of a group's name and of its description: all of GROUPS_MAX groups have room for theirs

# Limits of what travels.
HISTORY_MAX = 400  # operations of one rank in one view
SITES_MAX = 1000
SOURCES_MAX = 32
MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # of any kind
MIB = 1024 * 1024
KIND_BYTES_MAX = {  # of a message of an agent, by its kind; an agent parts what is longer, where that can be parted
    "hello": 4096,
    "gone": 4096,
    "probed": 4096,
    "announce": MIB,
    "standby": 64 * 1024,
    "predecessor": 2 * MIB,  # 10,000 nodes of 8 ranks each
    "loops": MIB,
    "digest": 4 * MIB,
    "stacks": 4 * MIB,
    "facts": MIB // 2,  # 64 ranks that all differ, each with 400 wrapped units
    "parameters": 2 * MIB,  # of a few ranks, each with as many as are told
    "testimonies": 4 * MIB,
    "views": 8 * MIB,
}
ELEMENTS_MAX = 4096  # of a list in a long message: ranks, threads, frames
VIEW_BYTES_MAX = 2 * MIB  # of the view of one rank: an agent leaves out what it does not need to be judged
ELEMENT_BYTES_MAX = MIB // 2  # of one of them: it is decoded in one piece, for which all others wait
PROBE_PORT = 62471  # that agents try where another node is in question: above the ports that kernels give to sockets
ADDRESSES_MAX = 16  # of one node
PROBED_MAX = 64  # nodes that one agent is asked about at once
TITLE_CHARS_MAX = 80  # of a job
COMMAND_CHARS_MAX = 300
LABELS_CHARS_MAX = 300
TEXT_CHARS_MAX = 2000  # of an exception, a condition, a source line
STACK_DEPTH_MAX = 100
SPOOL_BYTES_MAX = 8 * 1024 * 1024

# Files beside a ring, where stacks can only be told by the rank itself.
ASK_SUFFIX = ".ask"  # the agent's question
ANSWER_SUFFIX = ".stacks"  # the rank's answer

# A file beside a ring in which the agent tells the rank of hangs, where the owner of the job wants that.
NOTICE_SUFFIX = ".notice"

# Files beside a ring with which an agent and its ranks pass the address of a job's server from node to node.
OFFER_SUFFIX = ".offer"  # the agent beside rank 0: what the rank puts into the job's store
FOUND_SUFFIX = ".found"  # the rank: what it found there
OFFERED_RANKS = 2  # the first ones of a node do so
OFFER_BYTES_MAX = 8192

# A file beside a ring with what the rank says of how it was set up, see `contract.preflight`.
FACTS_SUFFIX = ".facts"
FACTS_BYTES_MAX = 512 * 1024
INCIDENTS_PAGE_MAX = 2000  # that a server gives out at a time; no more are open
INCOMPLETE_HEADER = "X-Ncclwatch-Incomplete"  # of a list of incidents: why those are missing that only the store knows
FOREIGN_HEADER = "X-Ncclwatch-Foreign"  # of a server's refusal of another user of its machine
LEADER_HEADER = "Ncclwatch-Leader"  # the server that leads, in the answer of one that does not
FACT_CHARS_MAX = 200
JOB_CHARS_MAX = 80  # of a job's name

# Rhythm.
PULSE_S = 0.5  # of the rank's pulse thread
EXIT_WAIT_S = 10.0  # for its last beat, which takes milliseconds, before the interpreter ends
DIGEST_S = 1.0  # of the agent
SAVE_KEPT_S = 10.0  # a save is told of for so long after its end: many take less than a digest


def runtime_dir(environ: Mapping[str, str] = os.environ) -> str:
    """Return the directory that holds this user's rings: <base>/ncclwatch-<uid>."""
    base = environ.get(ENV_RUNTIME_DIR) or "/dev/shm"
    return f"{base}/{runtime_name()}"


def runtime_name() -> str:
    """Return the name of the directory that holds this user's rings."""
    return f"ncclwatch-{os.getuid()}"


def server_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the server a rank's agent should dial, or several as in NCCLWATCH_SERVER; else port 8470 of the master."""
    named = environ.get(ENV_SERVER, "").strip()
    if named:
        return ",".join(without_credentials(each).rstrip("/") for each in addresses(named))
    host = environ.get("MASTER_ADDR") or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{DEFAULT_PORT}"


def addresses(named: str) -> list[str]:
    """Return the addresses in NCCLWATCH_SERVER: several, with commas between them, of servers of which one leads."""
    return [each.strip() for each in named.split(",") if each.strip()] or [named]


def without_credentials(url: str) -> str:
    """Return the URL of a server without a user name and a password, which nothing uses."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else url.rpartition("@")[2]


def server_naming(environ: Mapping[str, str] = os.environ) -> str:
    """Return how the server's address came about, which decides what it is believed: NAMED, UNNAMED or OWN."""
    named = environ.get(ENV_SERVER, "").strip()
    if not named:
        return UNNAMED
    return OWN if named == environ.get(ENV_SERVER_OWN, "").strip() else NAMED
