"""How late it is as far as the store trusts any clock, and who made a silence apart from how it is signed."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TIMES = (("incidents", "opened_at"), ("incidents", "closed_at"), ("lessons", "learned_at"), ("audit", "at"))


def upgrade() -> None:
    """Add the clock, which begins with the newest of all that is kept; until now a silence said who had made it."""
    clock = op.create_table(
        "clock",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("trusted_at", sa.Float, nullable=False),
    )
    bind = op.get_bind()
    newest = [
        bind.execute(sa.select(sa.func.max(sa.column(at))).select_from(sa.table(of))).scalar() for of, at in _TIMES
    ]
    now = min(time.time(), max((float(at) for at in newest if at is not None), default=time.time()))
    op.bulk_insert(clock, [{"id": 1, "trusted_at": now}])
    op.add_column("silences", sa.Column("signed", sa.String(500), nullable=False, server_default=""))
    op.execute("UPDATE silences SET signed = author, author = ''")
