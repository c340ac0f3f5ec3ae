"""Incidents and lessons: what stores held before they had a version. There may be both, one or none."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make what is not there."""
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("job", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("instance", sa.String(1024), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("cause", sa.String(64), nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("closed_at", sa.Float),
        sa.Column("body", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_index("incidents_by_state", "incidents", ["state", "opened_at"], if_not_exists=True)
    op.create_index("incidents_by_job", "incidents", ["job", "opened_at"], if_not_exists=True)
    op.create_table(
        "lessons",
        sa.Column("job", sa.String(255), primary_key=True),
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("learned_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_lessons_learned_at", "lessons", ["learned_at"], if_not_exists=True)
