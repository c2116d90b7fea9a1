"""Quotas of users and groups, and what each user has used and stored."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


# What is there already. A reply that is still open counts when the next start closes it.
CONVERSATIONS = """
UPDATE conversations SET stored_bytes = (
    SELECT coalesce(sum(octets[messages.text]), 0) FROM messages
    WHERE messages.conversation_id = conversations.id
    AND NOT (messages.role = 'assistant' AND EXISTS (
        SELECT 1 FROM responses
        WHERE responses.message_id = messages.id AND responses.status IN ('queued', 'in_progress')
    ))
) + (
    SELECT coalesce(sum(octets[responses.instructions]), 0) FROM responses
    WHERE responses.conversation_id = conversations.id
)
"""
USERS = """
INSERT INTO meters (user_id, stored_bytes, day, requests, tokens)
SELECT users.id, (
    SELECT coalesce(sum(conversations.stored_bytes), 0) FROM conversations
    WHERE conversations.user_id = users.id
) + (
    SELECT coalesce(sum(octets[library_versions.text]), 0) FROM library_versions
    JOIN library_items ON library_items.id = library_versions.item_id
    WHERE library_items.owner_id = users.id
), '', 0, 0 FROM users
"""


def upgrade() -> None:
    op.create_table(
        "user_quotas",
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("allowed", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_user_quotas_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "kind", name="pk_user_quotas"),
    )
    op.create_table(
        "group_quotas",
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("allowed", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name="fk_group_quotas_group_id_groups", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("group_id", "kind", name="pk_group_quotas"),
    )
    op.create_table(
        "meters",
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_meters_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", name="pk_meters"),
    )
    op.create_table(
        "usage_days",
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("computed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["meters.user_id"],
            name="fk_usage_days_user_id_meters",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("user_id", "day", "model", "key_id", name="pk_usage_days"),
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    op.add_column(
        "conversations",
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"),
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    before, after = ("length(CAST(", " AS BLOB))") if is_sqlite else ("octet_length(", ")")
    for statement in (CONVERSATIONS, USERS):
        op.execute(statement.replace("octets[", before).replace("]", after))


def downgrade() -> None:
    op.drop_column("conversations", "stored_bytes")
    for table in ("usage_days", "meters", "group_quotas", "user_quotas"):
        op.drop_table(table)
