"""Names the tables of a store, as the newest migration leaves them.

| table     | holds                                             | goes when                                     |
|-----------|---------------------------------------------------|-----------------------------------------------|
| incidents | each incident's newest form, stacks included       | --keep-days, --keep-incidents, a job's deletion |
| lessons   | how long waits of a job lasted that ended well    | --keep-days after the last, a job's deletion  |
| silences  | who wants no alerts about which job, and until when | a year after their end, a job's deletion      |
| notifications | what each target of alerts was told of an incident | with the incident                          |
| leadership | which of several servers leads, see `ncclwatch_server.leadership` | never                      |
| servers   | the servers that would lead                       | when they end, or are silent for long         |
| audit     | who asked for stacks, silenced or deleted what, and when | after AUDIT_DAYS; nothing else changes it |
| clock     | how late it is, as far as that is trusted (see `retention`) | never                               |

A change here needs a migration in `migrations/versions`; a test compares the two.
"""

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text

AUDIT_DAYS = 365  # the store itself refuses to delete younger lines

metadata = MetaData()

incidents = Table(
    "incidents",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("job", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("instance", String(1024), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("cause", String(64), nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("body", Text, nullable=False),  # the JSON of `incidents.report.IncidentReport`
    Column("onset_at", Float),  # of a hang; NULL: it tells of none, or an older version wrote it
    Column("over_at", Float),  # these are the fields of a `Loss`
    Column("fate", String(16)),
    Column("gpus", Integer),
    Column("timeout_s", Float),
    Column("term", Integer, nullable=False, server_default="0"),  # of the leader that wrote it; 0: of a single server
    Index("incidents_by_state", "state", "opened_at"),
    Index("incidents_by_time", "opened_at"),
    Index("incidents_by_job", "job", "opened_at"),
)

lessons = Table(
    "lessons",
    metadata,
    Column("job", String(255), primary_key=True),  # the name that its ranks report
    Column("kind", String(255), primary_key=True),  # the class of waits, for people and as a key
    Column("learned_at", Float, nullable=False, index=True),
    Column("body", Text, nullable=False),  # the JSON of a `Lesson`
)

silences = Table(
    "silences",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("job", String(200), nullable=False),
    Column("starts_at", Float, nullable=False),
    Column("ends_at", Float, nullable=False),
    Column("reason", String(500), nullable=False),
    Column("author", String(500), nullable=False),  # whose token made it, "" for one made before that was known
    Column("signed", String(500), nullable=False, server_default=""),  # what its maker wrote
    Column("made_at", Float, nullable=False),
    Index("silences_by_end", "ends_at"),
)

notifications = Table(
    "notifications",
    metadata,
    Column("target", String(40), primary_key=True),
    Column("incident", String(40), primary_key=True),
    Column("stage", String(16), nullable=False),
    Column("messages", Integer, nullable=False),
    Column("digest", String(16), nullable=False),
    Column("urgency", Integer, nullable=False),
    Column("at", Float, nullable=False, index=True),  # seconds since 1970, of the last message
)

clock = Table(
    "clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("trusted_at", Float, nullable=False),  # seconds since 1970
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("holder", String(40), nullable=False),  # id of a server; "": nobody
    Column("url", String(1024), nullable=False),  # where agents and other servers reach it
    Column("term", Integer, nullable=False),  # grows with each change of the leader
    Column("beat", Integer, nullable=False),  # grows with each renewal
)

servers = Table(
    "servers",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("url", String(1024), nullable=False),
    Column("beat", Integer, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", String(40), primary_key=True),  # rises with time
    Column("at", Float, nullable=False, index=True),
    Column("who", String(255), nullable=False),
    Column("act", String(32), nullable=False),
    Column("job", String(255), nullable=False),
    Column("detail", Text, nullable=False),
)
