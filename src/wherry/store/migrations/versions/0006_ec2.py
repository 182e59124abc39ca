"""Access keys of accounts, and the objects of the EC2 Query API."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Makes their tables."""
    op.create_table(
        "access_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("user", sa.String, nullable=False, index=True),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "ec2_objects",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("uid", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.UniqueConstraint("kind", "uid", "name"),
    )


def downgrade() -> None:
    """Removes them."""
    op.drop_table("ec2_objects")
    op.drop_table("access_keys")
