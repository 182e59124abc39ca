"""Clusters that wait for room."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Makes their table."""
    op.create_table(
        "queue",
        sa.Column("operation", sa.String, primary_key=True),
        sa.Column("cluster", sa.String, nullable=False, unique=True),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, index=True, server_default="0"),
    )


def downgrade() -> None:
    """Removes it."""
    op.drop_table("queue")
