"""Queries that only SQLite answers get columns: the order of rows, and values inside records. The leader's lease."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_ORDERED = ("jobs", "programs", "moves", "operations")


def upgrade() -> None:
    """Adds the columns and fills them."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    for table in _ORDERED:
        op.add_column(table, sa.Column("number", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("state", sa.String, nullable=False, server_default=""))
    op.add_column("programs", sa.Column("uid", sa.BigInteger, nullable=False, server_default="0"))
    for table in _ORDERED:
        _fill(table, "ctid" if postgresql else "rowid")
        op.create_index(f"ix_{table}_number", table, ["number"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_programs_uid", "programs", ["uid"])
    if postgresql:
        op.alter_column("events", "id", type_=sa.BigInteger)
        op.execute("ALTER SEQUENCE events_id_seq AS BIGINT")
    op.create_table(
        "leadership",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("place", sa.String, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
    )
    op.execute("INSERT INTO leadership (epoch, place, holder, expires) VALUES (0, '', '', 0)")


def downgrade() -> None:
    """Removes them. The rows are put into their order, as earlier versions read it from where they stand."""
    op.drop_table("leadership")
    for table in _ORDERED:
        _put_in_order(table)
        op.drop_index(f"ix_{table}_number", table)
    op.drop_index("ix_jobs_state", "jobs")
    op.drop_index("ix_programs_uid", "programs")
    for table in _ORDERED:
        op.drop_column(table, "number")
    op.drop_column("jobs", "state")
    op.drop_column("programs", "uid")


def _fill(table: str, order: str) -> None:
    key = "key" if table == "programs" else "id"
    connection = op.get_bind()
    rows = connection.execute(sa.text(f"SELECT {key}, record FROM {table} ORDER BY {order}")).all()
    for number, (id, text) in enumerate(rows, 1):
        values = {"id": id, "number": number}
        change = "number = :number"
        if table == "jobs":
            values["state"], change = json.loads(text)["state"], f"{change}, state = :state"
        if table == "programs":
            values["uid"], change = json.loads(text)["program"]["uid"], f"{change}, uid = :uid"
        connection.execute(sa.text(f"UPDATE {table} SET {change} WHERE {key} = :id"), values)


def _put_in_order(table: str) -> None:
    connection = op.get_bind()
    old = sa.Table(table, sa.MetaData(), autoload_with=connection)
    rows = [dict(row) for row in connection.execute(sa.select(old).order_by(old.c.number)).mappings()]
    if rows:
        connection.execute(old.delete())
        connection.execute(old.insert(), rows)
