"""The tables of accounts, projects, tokens, access keys and the audit log, as `wherry.store.tables`.

Secrets are columns, never part of a record: `password` (argon2id), `digest` (SHA-256 of a token's secret) and `sealed`
(an access key's secret, encrypted).
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, String, Table, Text, UniqueConstraint

from wherry.store.tables import metadata

users = Table(
    "users",
    metadata,
    Column("name", String, primary_key=True),
    Column("uid", BigInteger, nullable=False, unique=True),
    Column("password", Text, nullable=False),
    Column("record", Text, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String, primary_key=True),
    Column("user", String, nullable=False, index=True),
    Column("digest", String, nullable=False),
    Column("record", Text, nullable=False),
)

access_keys = Table(
    "access_keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("user", String, nullable=False, index=True),
    Column("sealed", Text, nullable=False),
    Column("record", Text, nullable=False),
)

ec2_objects = Table(
    "ec2_objects",
    metadata,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("name", String, nullable=False),
    Column("record", Text, nullable=False),
    UniqueConstraint("kind", "uid", "name"),
)

projects = Table(
    "projects",
    metadata,
    Column("name", String, primary_key=True),
    Column("uid", BigInteger, nullable=False, unique=True),
    Column("record", Text, nullable=False),
)

members = Table(
    "members",
    metadata,
    Column("project", String, primary_key=True),
    Column("user", String, primary_key=True, index=True),
    Column("owner", Boolean, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("who", String, nullable=False, index=True),
    Column("address", String, nullable=False),
    Column("what", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("code", String, nullable=False),
    Column("operation", String, nullable=False),
    sqlite_autoincrement=True,
)
