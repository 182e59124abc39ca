"""Secrets of clusters are sealed by the instance's keys, which are in a file of their own and took up that of access
keys."""

from collections.abc import Callable

import sqlalchemy as sa
from alembic import context, op

from wherry.store.sealing import Sealing

revision = "0009"
down_revision = "0008"

_EARLIER = "ec2.key"
"""The file that sealed access keys before."""


def upgrade() -> None:
    """Seals the secrets. A file of keys of access keys is taken over; it stays for an earlier version."""
    sealing = context.config.attributes["sealing"]
    earlier = sealing.path.with_name(_EARLIER)
    if earlier.exists():
        sealing.adopt(earlier)
    _change("secrets", "name", "value", sealing.seal)


def downgrade() -> None:
    """Opens the secrets; access keys are sealed by the first key alone. Refused when a cluster's secret does not
    open."""
    sealing = context.config.attributes["sealing"]
    _change("secrets", "name", "value", sealing.open)
    if sealing.path.exists():
        sealing.hand_over(sealing.path.with_name(_EARLIER))
        _change("access_keys", "id", "sealed", lambda name, sealed: _again(sealing, name, sealed))


def _again(sealing: Sealing, name: str, sealed: str) -> str:
    return sealing.seal(name, sealing.open(name, sealed)) if sealing.opens(name, sealed) else sealed


def _change(table: str, key: str, column: str, change: Callable[[str, str], str]) -> None:
    rows = op.get_bind().execute(sa.text(f"SELECT {key}, {column} FROM {table}")).all()
    for name, value in rows:
        statement = sa.text(f"UPDATE {table} SET {column} = :value WHERE {key} = :name")
        op.get_bind().execute(statement, {"name": name, "value": change(name, value)})
