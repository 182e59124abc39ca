"""The tables. Each has some columns for queries, and the whole record as JSON (`record`).

Invariants: columns and record agree, as one statement writes both. `number` is the order in which rows were inserted;
it does not follow from their times, as the clock can be set.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

from wherry.model.records import OperationState

metadata = MetaData()
UNDER_WAY = [str(state) for state in OperationState if state.under_way]
"""States of operations that run or wait."""
_Numbered = BigInteger().with_variant(Integer(), "sqlite")
"""Of rows that the database numbers by itself, which SQLite does in an INTEGER column alone; it has 64 bits there."""

fabrics = Table("fabrics", metadata, Column("name", String, primary_key=True), Column("record", Text, nullable=False))

host_flags = Table(
    "host_flags",
    metadata,
    Column("host", String, primary_key=True),
    Column("flag", String, primary_key=True),
    Column("on", Boolean, nullable=False),
)

clusters = Table(
    "clusters",
    metadata,
    Column("name", String, primary_key=True),
    Column("record", Text, nullable=False),
    Column("uid", BigInteger, nullable=False, server_default="0"),
    Index("ix_clusters_uid_name", "uid", "name"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String, primary_key=True),
    Column("cluster", String, nullable=False),
    Column("position", Integer, nullable=False),
    Column("record", Text, nullable=False),
    Index("ix_nodes_cluster_position", "cluster", "position"),
)

leases = Table(
    "leases",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("ends", Float, nullable=False),
    Column("record", Text, nullable=False),
)
"""Of clusters. They are no part of a cluster's record, which others write meanwhile."""

node_hours = Table(
    "node_hours",
    metadata,
    Column("uid", BigInteger, primary_key=True, autoincrement=False),
    Column("seconds", Float, nullable=False),
)
"""Of nodes that are gone, by the account or project."""

queue = Table(
    "queue",
    metadata,
    Column("operation", String, primary_key=True),
    Column("cluster", String, nullable=False, unique=True),
    Column("record", Text, nullable=False),
    Column("number", BigInteger, nullable=False, index=True, server_default="0"),
)
"""Clusters that wait for room."""

settings = Table(
    "settings", metadata, Column("name", String, primary_key=True), Column("value", String, nullable=False)
)

secrets = Table("secrets", metadata, Column("name", String, primary_key=True), Column("value", Text, nullable=False))

jobs = Table(
    "jobs",
    metadata,
    Column("id", String, primary_key=True),
    Column("cluster", String, nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("record", Text, nullable=False),
    Column("number", BigInteger, nullable=False, index=True, server_default="0"),
    Column("state", String, nullable=False, index=True, server_default=""),
)

programs = Table(
    "programs",
    metadata,
    Column("key", String, primary_key=True),
    Column("record", Text, nullable=False),
    Column("number", BigInteger, nullable=False, index=True, server_default="0"),
    Column("uid", BigInteger, nullable=False, index=True, server_default="0"),
)

moves = Table(
    "moves",
    metadata,
    Column("id", String, primary_key=True),
    Column("node", String, nullable=False, index=True),
    Column("finished", Boolean, nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("record", Text, nullable=False),
    Column("number", BigInteger, nullable=False, index=True, server_default="0"),
)

operations = Table(
    "operations",
    metadata,
    Column("id", String, primary_key=True),
    Column("state", String, nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("record", Text, nullable=False),
    Column("number", BigInteger, nullable=False, index=True, server_default="0"),
    Column("uid", BigInteger, nullable=False, server_default="0"),
    Column("key", String, nullable=False, index=True, server_default=""),
    Column("owner", BigInteger, nullable=True),
    Index("ix_operations_uid_number", "uid", "number"),
    Index("ix_operations_owner_number", "owner", "number"),
)

operation_steps = Table(
    "operation_steps",
    metadata,
    Column("operation", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("by", String, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", _Numbered, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("target", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("by", String, nullable=False, server_default=""),
    Column("owner", BigInteger, nullable=True),
    sqlite_autoincrement=True,
)

leadership = Table(
    "leadership",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("place", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("expires", Float, nullable=False),
)
"""One row (`wherry.store.lease`)."""
