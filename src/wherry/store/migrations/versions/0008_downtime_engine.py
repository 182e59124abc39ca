"""The engine's view of a downtime is called `downtime_engine` in the records of moves: QEMU has one as well as CRIU."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_OLD, _NEW = '"downtime_criu":', '"downtime_engine":'


def upgrade() -> None:
    """Renames the field in moves, and in the results of operations."""
    _rename(_OLD, _NEW)


def downgrade() -> None:
    """Gives the field its earlier name."""
    _rename(_NEW, _OLD)


def _rename(old: str, new: str) -> None:
    for table in ("moves", "operations"):
        op.get_bind().execute(
            sa.text(f"UPDATE {table} SET record = replace(record, :old, :new)"), {"old": old, "new": new}
        )
