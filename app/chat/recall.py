"""Text back to ids: what a stateless client sends again, found by what it says (laws 3, 11, 16).

    sent     [message] .. [reply] [message] .. [reply] [message] .. [new message]
    digest                      D1                  D2
    found    the longest beginning whose digest an ended reply in the caller's own ledgers has

A digest stands for everything up to a reply: whose it is, under which head, and each role and text,
exactly. Its user is a part of it, so that the equal words of two users have nothing in common. What
is found is compared word by word, read, and never written: a new turn takes the ids along as its
own. What is not found is rendered, as if it had never been said.
"""

import hashlib
from collections.abc import Iterable, Sequence

from app.chat.ledger import Branch, Ledger
from app.ids import UserId
from engine.api import Message, Role

MOST_REPLIES = 1_000
"""Ends of one history that are looked up, the latest; a longer one is found by them as well."""


def path_digest(user_id: UserId, head_key: str, said: Iterable[Message]) -> bytes:
    """Stands for these messages under this head of this user's."""
    digest = _chained(_chained(b"", user_id), head_key)
    for message in said:
        digest = following(digest, message)
    return digest


def following(digest: bytes, message: Message) -> bytes:
    """Stands for one message more."""
    return _chained(_chained(digest, message.role), message.text)


def _chained(digest: bytes, text: str) -> bytes:
    # What goes before has one length, so no two ways to cut a text are one input.
    return hashlib.sha256(digest + text.encode()).digest()


class Recall:
    """Looks into ledgers, the dearest to keep last: of equal finds the first ledger's is taken."""

    def __init__(self, *ledgers: Ledger) -> None:
        self._ledgers = ledgers

    async def find(
        self, user_id: UserId, head_key: str, messages: Sequence[Message]
    ) -> Branch | None:
        """The longest beginning of `messages` that ends in a reply, as it was said and is kept.

        Never all of them: something new is left to be rendered.
        """
        digests = _after_replies(user_id, head_key, messages)[: -MOST_REPLIES - 1 : -1]
        found: Branch | None = None
        for ledger in self._ledgers:
            branch = await ledger.recall(user_id, digests) if digests else None
            longer = branch is not None and len(branch.said) > (len(found.said) if found else 0)
            if branch is not None and longer and _begins(messages, branch):
                found = branch
        return found


def _after_replies(user_id: UserId, head_key: str, messages: Sequence[Message]) -> list[bytes]:
    digest = path_digest(user_id, head_key, ())
    digests = []
    for message in messages[:-1]:
        digest = following(digest, message)
        if message.role is Role.ASSISTANT:
            digests.append(digest)
    return digests


def _begins(messages: Sequence[Message], branch: Branch) -> bool:
    """Words are compared, not only digests (law 8)."""
    said = [(node.role, node.text) for node in branch.said]
    return said == [(one.role, one.text) for one in messages[: len(said)]]
