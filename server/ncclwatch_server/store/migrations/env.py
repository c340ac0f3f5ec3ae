"""What alembic runs to apply the steps. The connection, and its transaction, come from `upgrading`."""

from alembic import context

from ncclwatch_server.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
