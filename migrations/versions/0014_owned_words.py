"""Words are indexed with a mark of their owner; the server indexes those of before when it starts."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute(sa.delete(sa.table("message_texts")))


def downgrade() -> None:
    op.execute(sa.delete(sa.table("message_texts")))
