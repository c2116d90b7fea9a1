"""Conversations can be archived, pinned and kept warm."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("archived_at", sa.DateTime(timezone=True)))
    op.add_column("conversations", sa.Column("pinned_at", sa.DateTime(timezone=True)))
    kept = sa.Column("kept_warm", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("conversations", kept)


def downgrade() -> None:
    op.drop_column("conversations", "kept_warm")
    op.drop_column("conversations", "pinned_at")
    op.drop_column("conversations", "archived_at")
