"""The first tables. Written out, not taken from `tables.py`: a migration never changes afterwards."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes every table."""
    op.create_table(
        "fabrics", sa.Column("name", sa.String, primary_key=True), sa.Column("record", sa.Text, nullable=False)
    )
    op.create_table(
        "host_flags",
        sa.Column("host", sa.String, primary_key=True),
        sa.Column("flag", sa.String, primary_key=True),
        sa.Column("on", sa.Boolean, nullable=False),
    )
    op.create_table(
        "clusters", sa.Column("name", sa.String, primary_key=True), sa.Column("record", sa.Text, nullable=False)
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("cluster", sa.String, nullable=False, index=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "secrets", sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.Text, nullable=False)
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("cluster", sa.String, nullable=False, index=True),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "moves",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("node", sa.String, nullable=False, index=True),
        sa.Column("finished", sa.Boolean, nullable=False, index=True),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    """Removes every table."""
    for name in ("events", "operations", "moves", "jobs", "secrets", "nodes", "clusters", "host_flags", "fabrics"):
        op.drop_table(name)
