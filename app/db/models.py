"""All tables, from the three pages that they are written on.

Every owned row is reached from its user by foreign keys, and goes with it (ON DELETE CASCADE); a
message goes with its conversation. Queries name the owner themselves: there are no relations to
walk, so nothing is loaded that was not asked for.

users ─┬─ logins
       ├─ user_quotas, meters ── usage_days
       ├─ identities                                     (what an OpenID provider calls them)
       ├─ api_keys
       ├─ password_links
       ├─ invitations ── invitation_groups               (the first admin's has no maker)
       ├─ group_members ── groups ── group_quotas
       ├─ library_items ── library_versions               (the operator's have no owner)
       │              ├─── library_readers
       │              └─── library_group_readers ── groups
       └─ conversations ── messages (a tree by parent_id) ── responses
                                                        └─── message_texts
departures, audit                                         (also of users who are no more)
"""

from app.db.conversations import Conversation, Message, MessageText, Response
from app.db.library import LibraryGroupReader, LibraryItem, LibraryReader, LibraryVersion
from app.db.people import (
    ApiKey,
    AuditEntry,
    Departure,
    Group,
    GroupMember,
    GroupQuota,
    Identity,
    Invitation,
    InvitationGroup,
    Login,
    Meter,
    PasswordLink,
    UsageDay,
    User,
    UserQuota,
)
from app.db.registry import Base

__all__ = [
    "ApiKey",
    "AuditEntry",
    "Base",
    "Conversation",
    "Departure",
    "Group",
    "GroupMember",
    "GroupQuota",
    "Identity",
    "Invitation",
    "InvitationGroup",
    "LibraryGroupReader",
    "LibraryItem",
    "LibraryReader",
    "LibraryVersion",
    "Login",
    "Message",
    "MessageText",
    "Meter",
    "PasswordLink",
    "Response",
    "UsageDay",
    "User",
    "UserQuota",
]
