"""A title may be the first words of a conversation, until the model has found a better one."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # Who gave the titles that there are is not known, so they stay.
    column = sa.Column("provisional_title", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("conversations", column)


def downgrade() -> None:
    op.drop_column("conversations", "provisional_title")
