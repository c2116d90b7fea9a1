"""A conversation can go on from the summary of another."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("continues_id", sa.String()))


def downgrade() -> None:
    op.drop_column("conversations", "continues_id")
