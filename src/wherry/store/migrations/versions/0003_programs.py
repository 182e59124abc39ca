"""Profiles of programs, by which their next runs are placed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Makes their table."""
    op.create_table(
        "programs", sa.Column("key", sa.String, primary_key=True), sa.Column("record", sa.Text, nullable=False)
    )


def downgrade() -> None:
    """Removes it."""
    op.drop_table("programs")
