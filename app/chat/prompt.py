"""From a branch and new messages to a prompt: exact ids, zones and history (laws 3, 11).

    ids    [head)[node][node] .. [node) | [new node] .. [new node] or [glue)
    from    kept or cached, as stored    | rendered here, once; then stored and never derived again
    scope  the head's parts' own (`heads`) | the caller's, to the end

Only the new messages become ids here, so a turn costs the same after ten turns and after a hundred.
Without a new message there is glue alone: it closes the path's last reply, and opens the next one.
The whole list is rendered from its start in three cases: a beginning without a head of its own (the
template's opening depends on what follows), a path whose fingerprints are not the engine's, and a
template that rewrites what was said. Nothing here is stored and no owner is checked.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from itertools import chain, pairwise

import msgspec

from app.chat.headed import Headed, HeadText, joined, rendered_alone, rendered_with_all, zoned
from app.chat.ledger import Branch, Head, Node
from app.ids import MessageId, UserId
from engine.api import (
    CacheSource,
    Engine,
    History,
    Message,
    ModelCard,
    Rendered,
    RenderRequest,
    Role,
    Scope,
    Seam,
    Stability,
    Zone,
)
from engine.errors import EngineError

CACHED_HEADS = 256
REMEMBERED_SEAMS = 4096


class NewMessages(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn brings."""

    messages: tuple[Message, ...]
    opens_reply: bool


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt is to be made of."""

    user_id: UserId
    branch: Branch
    head: HeadText
    new: NewMessages


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """New messages as ids behind a path that is not looked up yet, if it ends in this seam."""

    new: NewMessages
    seam: Seam
    rendered: Rendered


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """`inputs[i]` are the ids of new message i; all parts in order sum to `token_ids`."""

    head: Head
    path: tuple[Node, ...]
    path_changed: bool
    inputs: tuple[tuple[int, ...], ...]
    glue: tuple[int, ...]
    """What belongs to no new message, since there is none."""
    token_ids: tuple[int, ...]
    zones: tuple[Zone, ...]
    history: History | None


class Prompts:
    """Makes prompts with one engine's `render`; remembers the heads that it rendered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._heads: OrderedDict[tuple[UserId, str, str], Head] = OrderedDict()
        """By who wrote them: what is remembered is there sooner, which nobody else may notice."""
        self._seams: OrderedDict[MessageId, Seam] = OrderedDict()
        """How paths end that were gone on from lately, by their last message."""

    async def make(
        self, card: ModelCard, wanted: Wanted, rendered: Rendered | None = None
    ) -> Prompt:
        """`rendered`: by `ahead`, for the same branch and messages. Raises as `Engine.render` does."""
        is_bare = not wanted.head.messages and not wanted.head.tools
        if not wanted.branch.said and is_bare:
            return await self._whole(card, wanted)
        if not _goes_on(card, wanted.branch):
            return await self._whole(card, wanted)
        return await self._continued(card, wanted, rendered)

    async def guess(self, behind: MessageId | None, new: NewMessages) -> Guess | None:
        """What `ahead` would render behind this message, where it was gone on from before: by a draft.

        So it takes no time of its own beside the look at the path. Raises nothing.
        """
        seam = None if behind is None else self._seams.get(behind)
        if seam is None:
            return None
        request = RenderRequest(messages=new.messages, seam=seam, opens_reply=new.opens_reply)
        try:
            return Guess(new=new, seam=seam, rendered=await self._engine.render(request))
        except EngineError:
            return None  # whoever renders it in earnest is told

    async def ahead(
        self, card: ModelCard, branch: Branch, new: NewMessages, guessing: Awaitable[Guess | None]
    ) -> Rendered | None:
        """The new messages as ids, where those do not depend on what stands before the path."""
        if not branch.said or not _goes_on(card, branch) or _is_opened(branch, new):
            return None
        guess = await guessing
        if guess is not None and (guess.new, guess.seam) == (new, _seam(branch)):
            return guess.rendered
        return await self._render(branch, new)

    async def render(self, request: RenderRequest) -> Rendered:
        """As the engine does it."""
        return await self._engine.render(request)

    def forget_user(self, user_id: UserId) -> None:
        """Who is no more: what was rendered of their instructions is words of theirs."""
        for key in [one for one in self._heads if one[0] == user_id]:
            del self._heads[key]

    async def _render(self, branch: Branch, new: NewMessages) -> Rendered:
        seam = _seam(branch)
        if branch.path:
            self._seams[branch.path[-1].id] = seam
            if len(self._seams) > REMEMBERED_SEAMS:
                self._seams.popitem(last=False)
        return await self._engine.render(
            RenderRequest(messages=new.messages, seam=seam, opens_reply=new.opens_reply)
        )

    async def _continued(
        self, card: ModelCard, wanted: Wanted, rendered: Rendered | None
    ) -> Prompt:
        path = wanted.branch.path
        headed = await self._head(card, wanted)
        if _is_opened(wanted.branch, wanted.new):
            return _prompt(wanted, headed, path, ((), ()))
        rendered = rendered or await self._render(wanted.branch, wanted.new)
        slices, glue = _slices(rendered, 0, new=bool(wanted.new.messages))
        return _prompt(wanted, headed, path, (slices, glue))

    async def _whole(self, card: ModelCard, wanted: Wanted) -> Prompt:
        # A head with functions is rendered alone: whoever declares others changes nothing else.
        apart = await self._render_head(wanted) if wanted.head.tools else None
        heading = () if apart else wanted.head.messages
        told = tuple(Message(role=node.role, text=node.text) for node in wanted.branch.said)
        rendered = await self._engine.render(
            RenderRequest(
                messages=(*heading, *told, *wanted.new.messages),
                seam=Seam.CLOSED if apart else Seam.START,
                opens_reply=wanted.new.opens_reply,
            )
        )
        text = wanted.head
        headed = zoned(text, apart) if apart else rendered_with_all(text, rendered)
        end = 0 if apart else len(headed.head.token_ids)
        slices, glue = _slices(rendered, end, new=bool(wanted.new.messages))
        border = len(heading) + len(told)
        path = wanted.branch.path
        if told or not _all_rendered_by(path, card):
            path = _rendered_anew(path, slices[len(heading) : border], card)
        return _prompt(wanted, headed, path, (slices[border:], glue))

    async def head(self, card: ModelCard, text: HeadText) -> Headed:
        """The library's head by itself: as it was compiled, else rendered."""
        if card.template.stability is not Stability.UNSTABLE:
            return joined(text)
        return rendered_with_all(text, await self._engine.render(_beginning(text.messages)))

    async def _head(self, card: ModelCard, wanted: Wanted) -> Headed:
        """As it was sent before, else as it was compiled, from memory, or rendered."""
        kept, text = wanted.branch.head, wanted.head
        if kept is not None and kept.key == text.key:
            return zoned(text, kept)
        if text.parts and not text.tools:
            return joined(text)
        key = (wanted.user_id, text.key, card.template_fingerprint)
        # What was rendered before may tell of another day.
        if card.template.reads_clock or key not in self._heads:
            self._heads[key] = await self._render_head(wanted)
            if len(self._heads) > CACHED_HEADS:
                self._heads.popitem(last=False)
        self._heads.move_to_end(key)
        return zoned(text, self._heads[key])

    async def _render_head(self, wanted: Wanted) -> Head:
        # An opening is found before any message of the role; its text does not matter.
        said, text = wanted.branch.said, wanted.head
        first = Role.USER if text.tools else said[0].role if said else None
        probe = () if first is None else (Message(role=first, text="."),)
        request = msgspec.structs.replace(_beginning(text.beginning or probe), tools=text.tools)
        return rendered_alone(text, await self._engine.render(request))


def _goes_on(card: ModelCard, branch: Branch) -> bool:
    """What is new can be rendered by itself, behind the ids that there are."""
    is_stable = card.template.stability is not Stability.UNSTABLE
    return is_stable and _all_rendered_by(branch.path, card)


def _seam(branch: Branch) -> Seam:
    return (branch.path[-1].seam if branch.path else None) or Seam.CLOSED


def _is_opened(branch: Branch, new: NewMessages) -> bool:
    """The path's last message was sent to be answered, so its ids open the reply already."""
    path = branch.path
    if new.messages or not new.opens_reply or not path:
        return False
    return path[-1].role is not Role.ASSISTANT and path[-1].seam is Seam.CUT


def _beginning(messages: tuple[Message, ...]) -> RenderRequest:
    return RenderRequest(messages=messages, seam=Seam.START, opens_reply=False)


def _all_rendered_by(path: tuple[Node, ...], card: ModelCard) -> bool:
    return all(
        node.model_fingerprint == card.model_fingerprint
        and node.template_fingerprint == card.template_fingerprint
        and node.seam is not None
        for node in path
    )


def _rendered_anew(
    path: tuple[Node, ...], slices: Sequence[tuple[int, ...]], card: ModelCard
) -> tuple[Node, ...]:
    """The path with the ids of a whole rendering; marks have none."""
    ids = iter(slices)
    return tuple(
        msgspec.structs.replace(
            node,
            token_ids=() if node.is_mark else next(ids),
            seam=Seam.CLOSED,
            head_token_ids=None,
            model_fingerprint=card.model_fingerprint,
            template_fingerprint=card.template_fingerprint,
        )
        for node in path
    )


def _slices(
    rendered: Rendered, start: int, *, new: bool
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Each message's ids, and the glue behind them, which is the last one's if that is `new`.

    Ids before `start` belong to nobody; a message that ends there (one of the head) gets nothing.
    """
    ends = [max(end, start) for end in rendered.ends]
    if new:
        ends[-1] = len(rendered.token_ids)
    starts = [start, *ends]
    slices = [rendered.token_ids[a:b] for a, b in pairwise(starts)]
    return slices, rendered.token_ids[starts[-1] :]


def _prompt(
    wanted: Wanted,
    headed: Headed,
    path: tuple[Node, ...],
    new: tuple[Sequence[tuple[int, ...]], tuple[int, ...]],
) -> Prompt:
    (inputs, glue), head = new, headed.head
    nodes = chain.from_iterable(node.token_ids for node in path)
    token_ids = (*head.token_ids, *nodes, *chain.from_iterable(inputs), *glue)
    return Prompt(
        head=head,
        path=path,
        path_changed=bool(path) and path is not wanted.branch.path,
        inputs=tuple(inputs),
        glue=glue,
        token_ids=token_ids,
        zones=_zones(wanted, headed, len(token_ids)),
        history=_history(wanted.branch),
    )


def _zones(wanted: Wanted, headed: Headed, end: int) -> tuple[Zone, ...]:
    """Whose tokens lie where; zones without tokens are left out."""
    own = Scope(f"user:{wanted.user_id}")
    zones = (*headed.zones, Zone(scope=own, source=CacheSource.SESSION, end=end))
    starts = [0, *(zone.end for zone in zones)]
    return tuple(zone for start, zone in zip(starts, zones, strict=False) if zone.end > start)


def _history(branch: Branch) -> History | None:
    """What the path's last turn sent and got, as it was stored then."""
    if branch.head is None or branch.last is None:
        return None
    head, last = branch.head.token_ids, branch.last
    receipt = last.view.receipt
    return History(
        token_ids=(*head, *chain.from_iterable(node.token_ids for node in branch.path)),
        model_fingerprint=branch.path[-1].model_fingerprint or "",
        template_fingerprint=branch.path[-1].template_fingerprint or "",
        boot_id=last.asked.boot_id if receipt is None else receipt.boot_id,
        head_end=len(head),
        forked=branch.forked,
    )
