"""Shortening: the oldest whole turns leave a prompt that cannot fit (`truncation: auto`).

    said    [head) [system] [turn 1] [turn 2] [turn 3] [turn 4 .. what is new]
    kept    [head) [system]                   [turn 3] [turn 4 .. what is new]

A cut costs reading what is kept once more, so it is a deep one, and it is kept: what stays is copied,
with its exact ids, to a branch of its own, and the turns after it go on there. The cut depends on
lengths alone and moves in strides of half the model's room, so a stateless client whose history grows
is cut at the same place, turn after turn. What left stays stored where it was said.
"""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

import msgspec

from app.chat.entry import TurnRequest
from app.chat.ledger import Branch, Node
from app.chat.prompt import Prompt, Prompts, Wanted
from app.chat.recall import Recall
from engine.api import Message, ModelCard, RenderRequest, Role, Seam, Stability


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as if its sender had said what is kept, and nothing else, all at once."""

    request: TurnRequest
    found: Branch
    """What of that is known already."""
    prompt: Prompt
    carried: int
    """How many of the messages came from the branch and not with the request."""


class Kept(NamedTuple):
    """Of what was said: `[0, opening)` and `[start, end)`."""

    opening: int
    start: int


def what_is_kept(roles: Sequence[Role], tokens: Sequence[int], over: int, room: int) -> Kept | None:
    """Where to cut so that the prompt is shorter by `over` at least, or by all but the last turn.

    What the system said before the first turn stays. None where there is no turn that could leave.
    """
    opening = len(list(takewhile(lambda role: role is Role.SYSTEM, roles)))
    places = begins(roles)
    if not places:
        return None
    before = [0, *accumulate(tokens)]
    stride = max(1, room // 2)
    leaving = -(-over // stride) * stride
    deep = (place for place in places if before[place] - before[opening] >= leaving)
    return Kept(opening, next(deep, places[-1]))


def begins(roles: Sequence[Role]) -> list[int]:
    """Where turns begin but for the first one: each behind a reply, and not with what that called."""
    return [
        place
        for place in range(1, len(roles))
        if roles[place - 1] is Role.ASSISTANT and roles[place] not in (Role.ASSISTANT, Role.TOOL)
    ]


class Shortening:
    """Cuts what does not fit, with one engine's prompts and what the ledgers recall."""

    def __init__(self, prompts: Prompts, recall: Recall) -> None:
        self._prompts = prompts
        self._recall = recall

    async def cut(
        self, card: ModelCard, request: TurnRequest, wanted: Wanted, prompt: Prompt, *, room: int
    ) -> Cut | None:
        """`prompt` is what `wanted` came to, and longer than `room`. None: nothing can leave.

        Raises as `Engine.render` does.
        """
        nodes = tuple(node for node in prompt.path if not node.is_mark)
        new = wanted.new.messages
        told = tuple(Message(role=node.role, text=node.text) for node in nodes)
        said = (*told, *new)
        tokens = [len(ids) for ids in (*(node.token_ids for node in nodes), *prompt.inputs)]
        over = len(prompt.token_ids) - room
        kept = what_is_kept([one.role for one in said], tokens, over, room)
        if kept is None:
            return None
        messages = (*said[: kept.opening], *said[kept.start :])
        branch = await self._branch(card, wanted, nodes, kept)
        history, carried = prompt.history, len(branch.path)
        if request.previous_response_id is None and request.conversation_id is None:
            carried = 0
            recalled = await self._recall.find(wanted.user_id, wanted.head.key, messages)
            if recalled is not None and len(recalled.said) >= len(branch.path):
                branch, history = recalled, None
        rest = msgspec.structs.replace(wanted.new, messages=messages[len(branch.said) :])
        shorter = await self._prompts.make(
            card, msgspec.structs.replace(wanted, branch=branch, new=rest)
        )
        if history is not None:
            history = msgspec.structs.replace(history, forked=True)
            shorter = msgspec.structs.replace(shorter, history=history)
        return Cut(
            request=msgspec.structs.replace(request, messages=messages),
            found=branch,
            prompt=shorter,
            carried=carried,
        )

    async def _branch(
        self, card: ModelCard, wanted: Wanted, nodes: Sequence[Node], kept: Kept
    ) -> Branch:
        """What is kept of the path; its first turn begins behind the head now, not behind a reply."""
        opening, rest = nodes[: kept.opening], nodes[kept.start :]
        if rest and card.template.stability is not Stability.UNSTABLE:
            is_first = not (opening or wanted.head.messages or wanted.head.tools)
            rest = (await self._at_the_beginning(rest[0], is_first=is_first), *rest[1:])
        return msgspec.structs.replace(wanted.branch, path=(*opening, *rest), last=None)

    async def _at_the_beginning(self, node: Node, *, is_first: bool) -> Node:
        rendered = await self._prompts.render(
            RenderRequest(
                messages=(Message(role=node.role, text=node.text),),
                seam=Seam.START if is_first else Seam.CLOSED,
                opens_reply=node.seam is Seam.CUT,
            )
        )
        return msgspec.structs.replace(node, token_ids=rendered.token_ids[rendered.opening_end :])
