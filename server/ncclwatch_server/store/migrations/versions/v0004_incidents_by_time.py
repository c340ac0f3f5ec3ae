"""The list of all incidents, the newest first, is read without sorting all of them."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the index."""
    op.create_index("incidents_by_time", "incidents", ["opened_at"], if_not_exists=True)
