"""What was done by whom, and why turns missed the cache, where it can be searched for."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

FILL = {
    "sqlite": """
UPDATE responses SET miss_reason = json_extract(receipt, '$.miss_reason'),
    differs_at = json_extract(receipt, '$.differs_at') WHERE receipt IS NOT NULL
""",
    "postgresql": """
UPDATE responses SET miss_reason = receipt ->> 'miss_reason',
    differs_at = (receipt ->> 'differs_at')::integer WHERE receipt IS NOT NULL
""",
}


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor_id", sa.String()),
        sa.Column("door", sa.String(), nullable=False),
        sa.Column("act", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String()),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("request_id", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    for column in ("actor_id", "act", "subject_id"):
        op.create_index(f"ix_audit_{column}", "audit", [column])
    op.add_column("responses", sa.Column("miss_reason", sa.String()))
    op.add_column("responses", sa.Column("differs_at", sa.Integer()))
    op.execute(FILL[op.get_bind().dialect.name])
    op.create_index("ix_responses_misses", "responses", ["miss_reason", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_responses_misses", "responses")
    op.drop_column("responses", "differs_at")
    op.drop_column("responses", "miss_reason")
    op.drop_table("audit")
