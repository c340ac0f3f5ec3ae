"""What alerting must still know after a restart: silences, and what each target was told of an incident."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables. A server from before versions of stores may have made them already."""
    op.create_table(
        "silences",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("job", sa.String(200), nullable=False),
        sa.Column("starts_at", sa.Float, nullable=False),
        sa.Column("ends_at", sa.Float, nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("author", sa.String(500), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        if_not_exists=True,
    )
    op.create_index("silences_by_end", "silences", ["ends_at"], if_not_exists=True)
    op.create_table(
        "notifications",
        sa.Column("target", sa.String(40), primary_key=True),
        sa.Column("incident", sa.String(40), primary_key=True),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("messages", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("urgency", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_notifications_at", "notifications", ["at"], if_not_exists=True)
