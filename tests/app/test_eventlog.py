"""The log of a response: one order of events for every reader, from any cursor (law 14)."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import eventlog
from app.chat.eventlog import EventLog, EventLogs, rebuild
from app.events import (
    ItemAdded,
    LogEvent,
    ResponseEnded,
    ResponseStatus,
    ResponseView,
    TextDelta,
    TextDone,
)
from app.ids import MessageId, ResponseId, UserId
from tests.kit.logs import RECEIPT

ANN, BEN = UserId("user_ann"), UserId("user_ben")


def a_response(number: int = 1) -> ResponseView:
    return ResponseView(
        id=ResponseId(f"resp_{number}"),
        conversation_id=None,
        message_id=MessageId(f"msg_{number}"),
        parent_id=None,
        status=ResponseStatus.IN_PROGRESS,
        model="m",
        created_at=1.0,
    )


def completed(response: ResponseView) -> ResponseView:
    return msgspec.structs.replace(response, status=ResponseStatus.COMPLETED, completed_at=2.0)


def write_all(log: EventLog, words: list[str]) -> None:
    log.begin()
    log.progress()
    log.open_item()
    for word in words:
        log.write(word)
    log.close_item()
    log.end(completed(log.response))


def a_log(words: list[str], *, first: int = 0) -> EventLog:
    log = EventLog(a_response(), first=first)
    write_all(log, words)
    return log


async def read(log: EventLog, after: int = -1) -> list[LogEvent]:
    return [event async for event in log.subscribe(after)]


async def test_14_the_events_are_numbered_from_zero_in_the_dialects_order():
    events = await read(a_log(["a", "b"]))

    assert [event.sequence_number for event in events] == list(range(10))
    assert [type(event).__struct_config__.tag for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.ended",
    ]


@given(words=st.lists(st.text(min_size=1), max_size=20), cuts=st.lists(st.integers(0, 30)))
def test_14_readers_who_come_at_any_time_read_the_same_events(words: list[str], cuts: list[int]):
    """Readers join between any two events, at any cursor that the log has reached."""

    async def play() -> None:
        log = EventLog(a_response())
        beats = [log.begin, log.progress, log.open_item]
        beats += [lambda word=word: log.write(word) for word in words]  # type: ignore[misc]
        beats += [log.close_item, lambda: log.end(completed(log.response))]
        async with asyncio.TaskGroup() as readers:
            reading = []
            for beat, act in enumerate(beats):
                for cut in [cut for cut in cuts if cut == beat]:
                    after = min(cut, log.next_number) - 1
                    reading.append((after, readers.create_task(read(log, after))))
                act()
                await asyncio.sleep(0)
        whole = await read(log)
        assert all(task.result() == whole[after + 1 :] for after, task in reading)

    asyncio.run(play())


async def test_18_a_reader_who_sleeps_holds_nobody_up():
    log = EventLog(a_response())
    sleeper = log.subscribe()
    log.begin()
    first = await anext(sleeper)

    log.progress()
    log.end(completed(log.response))

    assert [first, *[event async for event in sleeper]] == await read(log)


async def test_a_cursor_at_the_end_of_an_ended_log_reads_nothing():
    log = a_log(["a"])

    assert await read(log, log.next_number - 1) == []


async def test_a_snapshot_is_everything_up_to_its_number():
    log = EventLog(a_response())
    log.begin()
    log.open_item()
    log.write("half of ")
    snapshot = log.snapshot()
    log.write("it")

    assert snapshot.text == "half of "
    assert snapshot.response.status is ResponseStatus.IN_PROGRESS
    rest = log.subscribe(snapshot.sequence_number)
    delta = await anext(rest)
    assert isinstance(delta, TextDelta)
    assert delta.delta == "it"


async def test_nothing_follows_the_end():
    log = a_log([])

    with pytest.raises(ValueError, match="has ended"):
        log.write("more")


async def test_a_wrong_number_is_refused():
    log = EventLog(a_response())

    with pytest.raises(ValueError, match="event 5 where 0 comes next"):
        log.append(ItemAdded(sequence_number=5, item_id=MessageId("msg_1")))


@given(after=st.integers(-1, 40))
def test_13_a_rebuilt_log_tells_the_whole_text_at_any_cursor(after: int):
    """The client's cursor is of the log that is gone: it gets the text once, or instead."""
    log = rebuild(completed(a_response()), "the whole text", has_item=True, after=after)

    events = asyncio.run(read(log, after))

    assert [event.sequence_number for event in events] == list(
        range(after + 1, after + 1 + len(events))
    )
    assert isinstance(events[-1], ResponseEnded)
    texts = [event.text for event in events if isinstance(event, TextDone)]
    deltas = [event.delta for event in events if isinstance(event, TextDelta)]
    assert deltas == (["the whole text"] if after < 4 else [])
    assert texts == ["the whole text"]


async def test_a_rebuilt_warm_up_has_no_item():
    warmed = msgspec.structs.replace(completed(a_response()), receipt=RECEIPT)
    log = rebuild(warmed, "", has_item=False)

    events = await read(log)

    assert len(events) == 3
    assert isinstance(events[-1], ResponseEnded)
    assert events[-1].response.status is ResponseStatus.COMPLETED


async def test_19_anothers_log_is_not_there():
    logs = EventLogs()
    log = logs.open(ANN, a_response())

    assert logs.get(ANN, log.response.id) is log
    assert logs.get(BEN, log.response.id) is None
    assert logs.get(ANN, ResponseId("resp_none")) is None


async def test_ended_logs_are_kept_ten_minutes():
    clock = [0.0]
    logs = EventLogs(now=lambda: clock[0])
    for number, moment in enumerate((0.0, 599.0, 601.0)):
        clock[0] = moment
        log = logs.open(ANN, a_response(number))
        write_all(log, ["a"])
        logs.retire(log.response.id)

    assert logs.get(ANN, ResponseId("resp_0")) is None
    assert logs.get(ANN, ResponseId("resp_1")) is not None


async def test_ended_logs_are_bounded_by_what_they_hold(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(eventlog, "KEEP_BYTES", 5 * a_log(["a", "b"]).size_bytes // 2)
    logs = EventLogs()
    live = logs.open(ANN, a_response(0))
    for number in (1, 2, 3):
        log = logs.open(ANN, a_response(number))
        write_all(log, ["a", "b"])
        logs.retire(log.response.id)

    assert logs.get(ANN, ResponseId("resp_1")) is None
    assert logs.get(ANN, ResponseId("resp_3")) is not None
    assert logs.get(ANN, live.response.id) is live


async def test_a_dropped_log_counts_no_more():
    logs = EventLogs()
    log = logs.open(ANN, a_response())
    write_all(log, ["a"])
    logs.retire(log.response.id)
    logs.drop(log.response.id)
    logs.drop(log.response.id)
    logs.retire(log.response.id)

    assert len(logs) == 0
