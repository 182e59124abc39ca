"""Accounts, projects, tokens and the audit log; whose an event is, and who caused it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Makes their tables, and columns of the events."""
    op.create_table(
        "users",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("uid", sa.BigInteger, nullable=False, unique=True),
        sa.Column("password", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("user", sa.String, nullable=False, index=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("uid", sa.BigInteger, nullable=False, unique=True),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "members",
        sa.Column("project", sa.String, primary_key=True),
        sa.Column("user", sa.String, primary_key=True, index=True),
        sa.Column("owner", sa.Boolean, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("who", sa.String, nullable=False, index=True),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("code", sa.String, nullable=False),
        sa.Column("operation", sa.String, nullable=False),
        sqlite_autoincrement=True,
    )
    op.add_column("events", sa.Column("by", sa.String, nullable=False, server_default=""))
    op.add_column("events", sa.Column("owner", sa.BigInteger, nullable=True))


def downgrade() -> None:
    """Removes them."""
    op.drop_column("events", "owner")
    op.drop_column("events", "by")
    for table in ("audit", "members", "projects", "tokens", "users"):
        op.drop_table(table)
