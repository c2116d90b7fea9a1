"""Who forgot a password gets a one-time link."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "password_links",
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("token_digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_password_links_user_id_users", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
            name="fk_password_links_created_by_users",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("user_id", name="pk_password_links"),
        sa.UniqueConstraint("token_digest", name="uq_password_links_token_digest"),
    )
    op.create_index("ix_password_links_created_by", "password_links", ["created_by"])


def downgrade() -> None:
    op.drop_table("password_links")
