"""Messages can be searched; the server indexes those of before when it starts."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# As FTS5's own documentation has them for a table that holds what is indexed.
FTS5 = (
    "CREATE VIRTUAL TABLE message_words USING fts5(user_id, words, content='message_texts',"
    " content_rowid='number', tokenize=\"ascii tokenchars '_'\")",
    "CREATE TRIGGER message_texts_added AFTER INSERT ON message_texts BEGIN"
    " INSERT INTO message_words(rowid, user_id, words)"
    " VALUES (new.number, new.user_id, new.words); END",
    "CREATE TRIGGER message_texts_deleted AFTER DELETE ON message_texts BEGIN"
    " INSERT INTO message_words(message_words, rowid, user_id, words)"
    " VALUES ('delete', old.number, old.user_id, old.words); END",
    "CREATE TRIGGER message_texts_changed AFTER UPDATE ON message_texts BEGIN"
    " INSERT INTO message_words(message_words, rowid, user_id, words)"
    " VALUES ('delete', old.number, old.user_id, old.words);"
    " INSERT INTO message_words(rowid, user_id, words)"
    " VALUES (new.number, new.user_id, new.words); END",
)
GIN = "CREATE INDEX ix_message_texts_words ON message_texts USING gin (words)"


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "message_texts",
        sa.Column("number", sa.Integer() if on_sqlite else sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column(
            "words", sa.Text() if on_sqlite else sa.dialects.postgresql.TSVECTOR(), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["message_id"],
            ["messages.id"],
            name="fk_message_texts_message_id_messages",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_message_texts_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name="pk_message_texts"),
        sa.UniqueConstraint("message_id", name="uq_message_texts_message_id"),
    )
    op.create_index("ix_message_texts_user_id", "message_texts", ["user_id"])
    for statement in FTS5 if on_sqlite else (GIN,):
        op.execute(statement)


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE message_words")
    op.drop_table("message_texts")
