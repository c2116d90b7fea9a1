"""Conversations that API clients make and name."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("labels", sa.JSON()))


def downgrade() -> None:
    op.drop_column("conversations", "labels")
