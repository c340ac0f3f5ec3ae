"""What counts of a hang where time lost is summed up, so that no incident has to be read whole for it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns. Of incidents that are there already nothing is known: they are left out of such sums."""
    op.add_column("incidents", sa.Column("onset_at", sa.Float))
    op.add_column("incidents", sa.Column("over_at", sa.Float))
    op.add_column("incidents", sa.Column("fate", sa.String(16)))
    op.add_column("incidents", sa.Column("gpus", sa.Integer))
    op.add_column("incidents", sa.Column("timeout_s", sa.Float))
