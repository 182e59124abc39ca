"""Runs the migrations over the connection that the store hands in; there is no other way to run them."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None)
with context.begin_transaction():
    context.run_migrations()
