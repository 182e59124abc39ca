"""Lists in pages: users of clusters and of operations are columns, and the orders of lists have indexes. The steps of
operations."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_INDEXES = (
    ("ix_clusters_uid_name", "clusters", ["uid", "name"]),
    ("ix_nodes_cluster_position", "nodes", ["cluster", "position"]),
    ("ix_operations_uid_number", "operations", ["uid", "number"]),
    ("ix_operations_owner_number", "operations", ["owner", "number"]),
)


def upgrade() -> None:
    """Adds the columns, fills them, and makes the indexes."""
    op.add_column("clusters", sa.Column("uid", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("operations", sa.Column("owner", sa.BigInteger, nullable=True))
    _fill("clusters", "name", "uid", "owner_uid")
    _fill("operations", "id", "owner", "owner")
    for name, table, columns in _INDEXES:
        op.create_index(name, table, columns)
    op.drop_index("ix_nodes_cluster", "nodes")
    op.create_table(
        "operation_steps",
        sa.Column("operation", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("by", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Removes them."""
    op.drop_table("operation_steps")
    op.create_index("ix_nodes_cluster", "nodes", ["cluster"])
    for name, table, _ in _INDEXES:
        op.drop_index(name, table)
    op.drop_column("operations", "owner")
    op.drop_column("clusters", "uid")


def _fill(table: str, key: str, column: str, field: str) -> None:
    for id, record in op.get_bind().execute(sa.text(f"SELECT {key}, record FROM {table}")).all():
        value = json.loads(record).get(field)
        if value is not None:
            change = sa.text(f"UPDATE {table} SET {column} = :value WHERE {key} = :id")
            op.get_bind().execute(change, {"value": value, "id": id})
