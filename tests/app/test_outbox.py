"""The outbox, alone and behind the pumps of a real event log."""

import asyncio

import pytest

from app.chat.eventlog import EventLogs
from app.chat.liveness import Liveness, Presence
from app.events import (
    ConversationView,
    ResponseCreated,
    ResponseEnded,
    ResponseStatus,
    ResponseView,
)
from app.frames import ConversationChanged, Cursor, Event, OutwardFrame, Snapshot
from app.ids import (
    ConversationId,
    UserId,
    new_conversation_id,
    new_message_id,
    new_response_id,
    new_user_id,
)
from app.routes.outbox import Close, Outbox
from app.routes.watches import Watches
from tests.kit.echo import EchoEngine

LIMIT = 8


def view(conversation_id: ConversationId) -> ResponseView:
    return ResponseView(
        id=new_response_id(),
        conversation_id=conversation_id,
        message_id=new_message_id(),
        parent_id=None,
        status=ResponseStatus.IN_PROGRESS,
        model="m",
        created_at=0.0,
    )


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_frames_come_out_in_the_order_they_went_in():
    outbox: Outbox[str] = Outbox()

    for word in ("a", "b", "c"):
        await outbox.put(word)

    assert [await outbox.take() for _ in range(3)] == ["a", "b", "c"]


async def test_put_waits_for_room():
    outbox: Outbox[int] = Outbox(limit=1)
    await outbox.put(1)

    waiting = asyncio.create_task(outbox.put(2))
    await settle()
    assert not waiting.done()
    assert await outbox.take() == 1
    await waiting

    assert await outbox.take() == 2


async def test_a_close_needs_no_room_and_comes_last():
    outbox: Outbox[str] = Outbox(limit=1)
    await outbox.put("a")

    await outbox.close(1012)

    assert [await outbox.take(), await outbox.take()] == ["a", Close(code=1012)]


async def test_on_overflow_a_snapshot_replaces_the_events_of_that_owner_alone():
    outbox: Outbox[str] = Outbox(limit=4)
    for owner, frame in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")):
        assert await outbox.offer(owner, frame, lambda: "unused")

    offering = asyncio.create_task(outbox.offer("a", "a3", lambda: "A"))
    await settle()
    taken = [await outbox.take() for _ in range(3)]

    assert taken == ["b1", "b2", "A"]
    assert await offering is False


async def test_a_snapshot_is_made_when_it_is_taken():
    outbox: Outbox[str] = Outbox(limit=1)
    await outbox.put("first")
    state = "old"

    offering = asyncio.create_task(outbox.offer("a", "event", lambda: state))
    await settle()
    state = "new"

    assert [await outbox.take(), await outbox.take()] == ["first", "new"]
    assert await offering is False


async def test_of_what_is_renewed_the_newest_waits_where_the_first_stood_and_needs_no_room():
    outbox: Outbox[str] = Outbox(limit=1)
    await outbox.put("a")
    await outbox.renew("figures", "1")
    waiting = asyncio.create_task(outbox.put("b"))
    await settle()

    await outbox.renew("figures", "2")
    await outbox.renew("figures", "3")

    assert [await outbox.take() for _ in range(3)] == ["a", "3", "b"]
    await waiting
    await outbox.renew("figures", "4")
    assert await outbox.take() == "4"


class Desk:
    """Watches on a small outbox, as a socket holds them."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.user_id: UserId = new_user_id()
        self.logs = EventLogs()
        self.outbox: Outbox[OutwardFrame] = Outbox(limit=LIMIT)
        page = Presence(Liveness(EchoEngine()), self.user_id)
        self.watches = Watches(group, self.outbox, self.logs, page)
        self.conversation_id = new_conversation_id()
        self.watches.open(self.conversation_id)

    async def take(self) -> OutwardFrame:
        frame = await self.outbox.take()
        assert not isinstance(frame, Close)
        return frame


async def test_18_a_reader_who_falls_behind_gets_one_snapshot_and_then_what_follows():
    async with asyncio.TaskGroup() as group:
        desk = Desk(group)
        response = view(desk.conversation_id)
        log = desk.logs.open(desk.user_id, response)
        log.begin()
        desk.watches.follow(response.id)
        log.open_item()
        for _ in range(10 * LIMIT):
            log.write("word ")
            await settle()
        assert len(desk.outbox) <= LIMIT + 1, "the log never waited and the queue is bounded"

        snapshot = await desk.take()
        log.write("last")
        log.end(response)
        frames = [await desk.take() for _ in range(2)]

    assert isinstance(snapshot, Snapshot)
    assert snapshot.text == "word " * 10 * LIMIT
    events = [frame.event for frame in frames if isinstance(frame, Event)]
    assert [event.sequence_number for event in events] == [
        snapshot.sequence_number + 1,
        snapshot.sequence_number + 2,
    ]
    assert isinstance(events[-1], ResponseEnded)


async def test_18_a_reader_who_is_late_for_everything_gets_the_end_in_a_snapshot():
    async with asyncio.TaskGroup() as group:
        desk = Desk(group)
        response = view(desk.conversation_id)
        log = desk.logs.open(desk.user_id, response)
        log.begin()
        desk.watches.follow(response.id)
        for _ in range(2 * LIMIT):
            log.write("x")
        log.end(response)
        await settle()

        frame = await desk.take()

    assert isinstance(frame, Snapshot)
    assert frame.sequence_number == log.next_number - 1
    assert len(desk.outbox) == 0


@pytest.mark.parametrize("after", [-1, 0, 3])
async def test_14_a_cursor_of_this_log_is_resumed_where_it_stands(after: int):
    async with asyncio.TaskGroup() as group:
        desk = Desk(group)
        response = view(desk.conversation_id)
        log = desk.logs.open(desk.user_id, response)
        log.begin()
        for word in ("a", "b", "c"):
            log.write(word)
        log.end(response)

        cursor = Cursor(response_id=response.id, after=after, epoch=desk.logs.epoch)
        await desk.watches.resume(log, cursor)
        frames = [await desk.take() for _ in range(4 - after)]

    numbers = [frame.event.sequence_number for frame in frames if isinstance(frame, Event)]
    assert numbers == list(range(after + 1, 5))


@pytest.mark.parametrize(("after", "epoch"), [(1, "another"), (99, "")])
async def test_13_a_cursor_of_another_log_is_answered_with_a_snapshot(after: int, epoch: str):
    async with asyncio.TaskGroup() as group:
        desk = Desk(group)
        response = view(desk.conversation_id)
        log = desk.logs.open(desk.user_id, response)
        log.begin()
        log.write("text")

        cursor = Cursor(response_id=response.id, after=after, epoch=epoch or desk.logs.epoch)
        await desk.watches.resume(log, cursor)
        log.end(response)
        first, second = await desk.take(), await desk.take()

    assert isinstance(first, Snapshot)
    assert first.text == "text"
    assert isinstance(second, Event)
    assert second.event.sequence_number == first.sequence_number + 1


async def test_notices_of_a_conversation_that_is_not_watched_stay_outside():
    async with asyncio.TaskGroup() as group:
        desk = Desk(group)
        elsewhere = new_conversation_id()
        log = desk.logs.open(desk.user_id, view(elsewhere))
        log.begin()

        desk.watches.follow(log.response.id)
        changed = ConversationView(
            id=elsewhere,
            title="t",
            persona_id=None,
            persona_version=None,
            document_ids=(),
            leaf_id=None,
            created_at=0.0,
            updated_at=0.0,
        )
        await desk.watches.notice(ConversationChanged(conversation=changed))
        await settle()

    assert isinstance(await desk.take(), ConversationChanged)
    assert len(desk.outbox) == 0


async def test_a_turn_that_is_refused_while_it_is_stored_leaves_no_pump_behind():
    async with asyncio.TaskGroup() as group:  # it waits for its pumps
        desk = Desk(group)
        refused, begun = (
            desk.logs.open(desk.user_id, view(desk.conversation_id)) for _ in ("refused", "begun")
        )
        for log in (refused, begun):
            desk.watches.follow(log.response.id)
        desk.logs.drop(refused.response.id)
        begun.begin()
        desk.watches.follow(begun.response.id)
        begun.end(begun.response)

    told = [await desk.take() for _ in range(len(desk.outbox))]

    assert [type(frame.event) for frame in told if isinstance(frame, Event)] == [
        ResponseCreated,
        ResponseEnded,
    ]
