"""Leases of clusters."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Makes their table."""
    op.create_table(
        "leases",
        sa.Column("cluster", sa.String, primary_key=True),
        sa.Column("ends", sa.Float, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Removes it."""
    op.drop_table("leases")
