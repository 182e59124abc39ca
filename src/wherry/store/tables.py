"""The tables. Each has some columns for queries, and the whole record as JSON (`record`).

Invariant: columns and record agree, as one statement writes both.
"""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Integer, MetaData, String, Table, Text

metadata = MetaData()

fabrics = Table("fabrics", metadata, Column("name", String, primary_key=True), Column("record", Text, nullable=False))

host_flags = Table(
    "host_flags",
    metadata,
    Column("host", String, primary_key=True),
    Column("flag", String, primary_key=True),
    Column("on", Boolean, nullable=False),
)

clusters = Table("clusters", metadata, Column("name", String, primary_key=True), Column("record", Text, nullable=False))

nodes = Table(
    "nodes",
    metadata,
    Column("name", String, primary_key=True),
    Column("cluster", String, nullable=False, index=True),
    Column("position", Integer, nullable=False),
    Column("record", Text, nullable=False),
)

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
)

moves = Table(
    "moves",
    metadata,
    Column("id", String, primary_key=True),
    Column("node", String, nullable=False, index=True),
    Column("finished", Boolean, nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("record", Text, nullable=False),
)

operations = Table(
    "operations",
    metadata,
    Column("id", String, primary_key=True),
    Column("state", String, nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("record", Text, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("target", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("data", Text, nullable=False),
    sqlite_autoincrement=True,
)
