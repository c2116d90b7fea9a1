"""Groups, invitations by admins, scopes of API keys, and users who have left."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_groups"),
        sa.UniqueConstraint("name", name="uq_groups_name"),
    )

    op.create_table(
        "group_members",
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name="fk_group_members_group_id_groups", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_group_members_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("group_id", "user_id", name="pk_group_members"),
    )
    op.create_index("ix_group_members_user_id", "group_members", ["user_id"])

    # Until now a link was for the first admin only, and each start prints a new one.
    op.drop_table("invitations")
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("token_digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.String()),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["created_by"], ["users.id"], name="fk_invitations_created_by_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
        sa.UniqueConstraint("token_digest", name="uq_invitations_token_digest"),
    )
    op.create_index("ix_invitations_created_by", "invitations", ["created_by"])

    op.create_table(
        "invitation_groups",
        sa.Column("invitation_id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["invitation_id"],
            ["invitations.id"],
            name="fk_invitation_groups_invitation_id_invitations",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["groups.id"],
            name="fk_invitation_groups_group_id_groups",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("invitation_id", "group_id", name="pk_invitation_groups"),
    )
    op.create_index("ix_invitation_groups_group_id", "invitation_groups", ["group_id"])

    op.create_table(
        "library_group_readers",
        sa.Column("item_id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["item_id"],
            ["library_items.id"],
            name="fk_library_group_readers_item_id_library_items",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["groups.id"],
            name="fk_library_group_readers_group_id_groups",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("item_id", "group_id", name="pk_library_group_readers"),
    )
    op.create_index("ix_library_group_readers_group_id", "library_group_readers", ["group_id"])

    op.create_table(
        "departures",
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("left_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_departures"),
    )

    # Keys of before may do whatever their owners may, and go on doing so.
    op.add_column(
        "api_keys",
        sa.Column("scopes", sa.String(), nullable=False, server_default="read write figures"),
    )


def downgrade() -> None:
    op.drop_column("api_keys", "scopes")
    op.drop_table("departures")
    op.drop_table("library_group_readers")
    op.drop_table("invitation_groups")
    op.drop_table("invitations")
    op.create_table(
        "invitations",
        sa.Column("token_digest", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("token_digest", name="pk_invitations"),
    )
    op.drop_table("group_members")
    op.drop_table("groups")
