"""Figures as they come by the browser's socket, on both databases: to whom, until when, and how many."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.chat import chronicle
from app.db.types import AccountRole
from app.events import Figures
from app.frames import (
    PROTOCOL,
    ErrorFrame,
    FiguresUnwatch,
    FiguresUnwatched,
    FiguresWatch,
    FiguresWatched,
    Hello,
    OutwardFrame,
    Subscribe,
    Subscribed,
    Welcome,
)
from app.ids import ConversationId
from app.routes import connection, samples
from app.routes.outbox import Close, Outbox
from engine.api import Stats
from engine.errors import EngineLost
from tests.kit.peers import Log, engine_of, narrow, until
from tests.kit.serving import Serving
from tests.kit.staff import (
    CUT_S,
    SIGNED_OUT,
    Somebody,
    beside_the_server,
    boss,
    closes,
    done,
    on_the_page,
    refusal,
    somebody,
)
from tests.kit.tab import Tab

LEFT_OUT = 100
"""Samples that a reader who takes nothing never sees."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample is another, and nobody waits for one."""
    monkeypatch.setattr(samples, "LIVE_S", 0.001)
    monkeypatch.setattr(chronicle, "FRESH_S", 0.0)


async def watch(tab: Tab, request_id: str = "w") -> Figures:
    """The first sample."""
    await tab.send(FiguresWatch(request_id=request_id))
    watched = await tab.expect(FiguresWatched)
    assert watched.request_id == request_id
    return await tab.expect(Figures)


async def fault(tab: Tab) -> tuple[str | None, str]:
    """What the server refuses next, and why."""
    async with asyncio.timeout(CUT_S):
        refused = await tab.expect(ErrorFrame)
    return refused.request_id, refused.error.code


async def up_to_subscription(tab: Tab, conversation_id: ConversationId) -> list[OutwardFrame]:
    """Everything that comes before the answer to one more request."""
    await tab.send(Subscribe(request_id="s", conversation_id=conversation_id))
    heard: list[OutwardFrame] = []
    while not isinstance(frame := await tab.receive(), Subscribed):
        heard.append(frame)
    return heard


async def test_samples_come_until_they_are_called_off_and_whoever_looks_is_written_down(
    house: Serving, quick: None
):
    async with boss(house) as admin, boss(house) as other, other.tab() as tab:
        first = await watch(tab)
        second = await tab.expect(Figures)
        stats = (await done(await other.client.get("/api/status")))["stats"]
        await watch(tab, "again")
        await tab.send(FiguresUnwatch(request_id="u"))
        ended = await tab.expect(FiguresUnwatched)
        conversation_id = await other.conversation()
        later = await up_to_subscription(tab, conversation_id)
        wanted = {"act": "figures.look", "actor_id": other.user_id}
        looks = await done(await admin.client.get("/api/admin/audit", params=wanted))

    assert second.at > first.at
    assert first.boot_id == second.boot_id == stats["boot_id"]
    assert ended.request_id == "u"
    assert not [frame for frame in later if isinstance(frame, Figures)]
    assert [row["details"]["what"] for row in looks["items"]].count("figures") == 1


async def test_11_a_member_hears_no_figures_by_the_socket_and_chats_on(house: Serving):
    async with somebody(house) as member, member.tab() as tab:
        await tab.send(FiguresWatch(request_id="w"))
        refused = await fault(tab)
        later = await up_to_subscription(tab, await member.conversation())

    assert refused == ("w", "forbidden")
    assert not [frame for frame in later if isinstance(frame, Figures)]


Way = Callable[[Serving, Somebody, AccountRole], Awaitable[None]]


@pytest.mark.row("live revocation", "CVE-2026-44553")
@pytest.mark.parametrize("move", [on_the_page, beside_the_server])
async def test_11_whose_role_is_taken_away_hears_no_more_figures_and_chats_on(
    house: Serving, move: Way, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(samples, "LIVE_S", 3600.0)  # no sample asks: it is the loss that is told
    async with boss(house), boss(house) as other, other.tab() as tab:
        await watch(tab)
        await move(house, other, AccountRole.MEMBER)
        ended = await fault(tab)
        await tab.send(FiguresWatch(request_id="again"))
        again = await fault(tab)
        later = await up_to_subscription(tab, await other.conversation())

    assert (ended, again) == (("w", "forbidden"), ("again", "forbidden"))
    assert not [frame for frame in later if isinstance(frame, Figures)]


@pytest.mark.row("live revocation")
@pytest.mark.parametrize("move", [on_the_page, beside_the_server])
async def test_an_auditor_who_may_chat_from_now_on_comes_in_anew(house: Serving, move: Way):
    async with somebody(house, AccountRole.AUDITOR) as who, who.tab() as tab:
        await watch(tab)
        await move(house, who, AccountRole.MEMBER)
        code = await closes(tab.socket)
        async with who.tab() as anew:
            await anew.subscribe(await who.conversation())
        await on_the_page(house, who, AccountRole.AUDITOR)
        async with who.tab() as back:
            await watch(back)
        await done(await who.client.post("/api/logout"))
        out = await refusal(who.socket())

    assert (code, out) == (SIGNED_OUT, 401)


class Lost:
    """An engine whose process is gone."""

    async def __call__(self) -> Stats:
        raise EngineLost("the engine is gone")


async def test_while_the_engine_is_away_the_watch_ends_with_a_word_and_can_be_taken_up_again(
    house: Serving, quick: None, told: Log
):
    async with boss(house) as admin, admin.tab() as tab:
        await watch(tab)
        with pytest.MonkeyPatch.context() as away:
            away.setattr(engine_of(house), "stats", Lost())
            ended = await fault(tab)
            await tab.send(FiguresWatch(request_id="again"))
            again = await fault(tab)
        await watch(tab, "back")

    assert [ended, again] == [("w", "unavailable"), ("again", "unavailable")]
    assert not told.complaints


# ---------------------------------------------------------------- a reader who is slow


class Counted(Outbox[Any]):
    """Counts the samples that went in and out."""

    renewed = taken = 0

    async def renew(self, owner: str, frame: Any) -> None:
        self.renewed += 1
        await super().renew(owner, frame)

    async def take(self) -> Any | Close:
        frame = await super().take()
        self.taken += isinstance(frame, Figures)
        return frame


async def test_18_who_reads_figures_too_slowly_gets_the_newest_and_none_that_waited(
    house: Serving, quick: None, monkeypatch: pytest.MonkeyPatch
):
    outbox = Counted()
    async with boss(house) as admin:
        monkeypatch.setattr(connection, "Outbox", lambda: outbox)
        async with admin.socket(sock=narrow(house), max_queue=1, compression=None) as slow:
            tab = Tab(slow)
            await tab.send(Hello(protocol=PROTOCOL))
            await tab.expect(Welcome)
            await watch(tab)
            slow.transport.pause_reading()
            await until(house, lambda: outbox.renewed - outbox.taken > LEFT_OUT)
            waiting, resumed_at = len(outbox), time.time()
            slow.transport.resume_reading()
            heard = [await tab.expect(Figures)]
            while heard[-1].at <= resumed_at:
                heard.append(await tab.expect(Figures))

    assert waiting == 1
    assert len(heard) < outbox.renewed - LEFT_OUT
