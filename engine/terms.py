"""The words that jobs and figures share: ids, and the kinds that things are counted by.

Part of the contract; `engine.api` has them too, for who uses the whole of it. Imports nothing.
"""

import enum
from typing import NewType

JobId = NewType("JobId", str)
SessionId = NewType("SessionId", str)
OwnerId = NewType("OwnerId", str)
Scope = NewType("Scope", str)


class JobClass(enum.StrEnum):
    """The scheduler's order, strongest first.

    What is BACKGROUND and replies is a throw-away branch of its session: a title, a summary. It
    publishes nothing, and takes no memory that its session's next turn could miss.
    """

    INTERACTIVE = "interactive"
    BACKGROUND = "background"
    DRAFT = "draft"


class Tier(enum.StrEnum):
    """Where KV lies, fastest first; below the last there are only the ids."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class CacheSource(enum.StrEnum):
    """Whose tokens a prompt's zone holds; receipts count cached tokens by it."""

    TEMPLATE = "template"
    PERSONA = "persona"
    DOCUMENT = "document"
    SESSION = "session"


class SubjectKind(enum.StrEnum):
    SESSION = "session"
    PERSONA = "persona"
    DOCUMENT = "document"
    OWNER = "owner"


class RetentionClass(enum.IntEnum):
    """The order in which cached blocks are let go: lower first."""

    ORPHAN = 0
    IDLE = 1
    RECENT = 2
    KEPT = 3
    LIVE = 4
    SHARED = 5
    RUNNING = 6


class MissReason(enum.StrEnum):
    FIRST_TURN = "first_turn"
    NEW_BRANCH = "new_branch"
    INPUT_CHANGED = "input_changed"
    INSTRUCTIONS_CHANGED = "instructions_changed"
    TEMPLATE_CHANGED = "template_changed"
    MODEL_CHANGED = "model_changed"
    EVICTED_IDLE = "evicted_idle"
    EVICTED_PRESSURE = "evicted_pressure"
    EVICTED_QUOTA = "evicted_quota"
    ENGINE_RESTART = "engine_restart"
    BELOW_GRANULARITY = "below_granularity"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    FAILED = "failed"
