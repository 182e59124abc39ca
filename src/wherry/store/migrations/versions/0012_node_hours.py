"""The node-hours of accounts and projects."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Makes their table."""
    op.create_table(
        "node_hours",
        sa.Column("uid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seconds", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Removes it."""
    op.drop_table("node_hours")
