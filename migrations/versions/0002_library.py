"""The library: personas and documents in versions, who may read them, which conversation has which."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "library_items",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("owner_id", sa.String()),
        sa.Column("visibility", sa.String(), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["users.id"],
            name="fk_library_items_owner_id_users",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_library_items"),
    )
    op.create_index("ix_library_items_owner_id", "library_items", ["owner_id"])

    op.create_table(
        "library_versions",
        sa.Column("item_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("examples", sa.JSON(), nullable=False),
        sa.Column("document_ids", sa.JSON(), nullable=False),
        sa.Column("built_in", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("token_ids", sa.LargeBinary()),
        sa.Column("opening_end", sa.Integer()),
        sa.Column("model_fingerprint", sa.String()),
        sa.Column("template_fingerprint", sa.String()),
        sa.ForeignKeyConstraint(
            ["item_id"],
            ["library_items.id"],
            name="fk_library_versions_item_id_library_items",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("item_id", "number", name="pk_library_versions"),
    )

    op.create_table(
        "library_readers",
        sa.Column("item_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["item_id"],
            ["library_items.id"],
            name="fk_library_readers_item_id_library_items",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
            name="fk_library_readers_user_id_users",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("item_id", "user_id", name="pk_library_readers"),
    )
    op.create_index("ix_library_readers_user_id", "library_readers", ["user_id"])

    op.add_column("conversations", sa.Column("persona_version", sa.Integer()))
    op.add_column(
        "conversations",
        sa.Column("documents", sa.String(), nullable=False, server_default=""),
    )
    # Until now there was one persona, which never changed.
    op.execute("UPDATE conversations SET persona_version = 1 WHERE persona_id IS NOT NULL")


def downgrade() -> None:
    op.drop_column("conversations", "documents")
    op.drop_column("conversations", "persona_version")
    op.drop_table("library_readers")
    op.drop_table("library_versions")
    op.drop_table("library_items")
