"""Settings of the service, which a restart keeps."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Makes their table."""
    op.create_table(
        "settings", sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.String, nullable=False)
    )


def downgrade() -> None:
    """Removes it."""
    op.drop_table("settings")
