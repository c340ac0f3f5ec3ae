"""The audit log. The store itself keeps its lines from being changed, and from being deleted for a year."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SQLITE = (
    """CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    """CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
       WHEN OLD.at > CAST(strftime('%s', 'now') AS REAL) - 365 * 86400
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
)
_POSTGRESQL = (
    """CREATE FUNCTION ncclwatch_audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         IF TG_OP = 'DELETE' AND OLD.at <= extract(epoch FROM now()) - 365 * 86400 THEN RETURN OLD; END IF;
         RAISE EXCEPTION 'the audit log is append-only';
       END $$""",
    """CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE ON audit
       FOR EACH ROW EXECUTE FUNCTION ncclwatch_audit_is_kept()""",
)


def upgrade() -> None:
    """Make the table and its guards."""
    op.create_table(
        "audit",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("act", sa.String(32), nullable=False),
        sa.Column("job", sa.String(255), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.get_bind().exec_driver_sql(statement)
