"""Replies can be found again by what is said up to them; those of before are not, and are rendered."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("messages", sa.Column("path_digest", sa.LargeBinary()))
    op.create_index("ix_messages_path_digest", "messages", ["path_digest"])


def downgrade() -> None:
    op.drop_index("ix_messages_path_digest", "messages")
    op.drop_column("messages", "path_digest")
