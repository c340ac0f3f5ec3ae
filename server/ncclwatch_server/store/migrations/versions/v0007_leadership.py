"""Which of several servers leads, and which others there are; and in which term an incident was written."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add two tables and a column. What is there already was written before there were terms."""
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String(40), nullable=False),
        sa.Column("url", sa.String(1024), nullable=False),
        sa.Column("term", sa.Integer, nullable=False),
        sa.Column("beat", sa.Integer, nullable=False),
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("url", sa.String(1024), nullable=False),
        sa.Column("beat", sa.Integer, nullable=False),
    )
    op.add_column("incidents", sa.Column("term", sa.Integer, nullable=False, server_default="0"))
