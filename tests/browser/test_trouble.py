"""What the page does when something fails: the network, a login, a quota, the engine. Nothing is lost by it.

On the real model, at a test's pace and as if each answer were drawn with the same luck.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, WebSocketRoute, expect

from app.db.types import QuotaKind
from app.ids import UserId, new_user_id
from app.routes import conversations
from engine.api import Engine, JobId, Limits
from engine.errors import EngineLost
from tests.browser.test_chat import LONG, letters, stored, wait_for_more
from tests.kit.engines import a_job, as_served, first_prompt, play
from tests.kit.paced import Described, PacedEngine, has_said, reads, somebody_waits
from tests.kit.peers import engine_of
from tests.kit.serving import Serving, serving
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

CUTS, MANY = 6, 20
BEATS = 3
"""Tokens between two cuts."""
LONGEST = MANY * BEATS + 10
"""Tokens of an answer that does not end by itself."""
SHORT = 8
"""Tokens of one that is stopped."""
READING = " ".join(["word"] * 300)
"""Takes several steps to read."""
WITHOUT_END = Limits(max_output_tokens=1500, ignore_eos=True)


@pytest.fixture(scope="module")
def real_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with the real model and one seat; the same question gets the same answer."""

    async def open_engine() -> Engine:
        config = as_served(
            deterministic=True, max_running=1, context_tokens=2048, checks=False, poison=False
        )
        return await PacedEngine.open(config)

    seeded = msgspec.structs.replace(conversations.BROWSER_SAMPLING, seed=1)
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(tmp_path_factory.mktemp("real"), open_engine) as running,
    ):
        patch.setattr(conversations, "BROWSER_SAMPLING", seeded)
        patch.setattr(conversations, "BROWSER_LIMITS", Limits(max_output_tokens=LONGEST))
        yield running.until_warm()


def paced(house: Serving) -> PacedEngine:
    engine = house.service.engine
    assert isinstance(engine, PacedEngine)
    return engine


class Visitor:
    """Somebody new at the page; their way to the server can be cut."""

    def __init__(self, page: Page, house: Serving) -> None:
        self.page = page
        self.house = house
        self.email = f"{new_user_id()}@example.org"
        self.user_id: UserId = house.do(
            house.service.accounts.create_user(self.email, "Somebody", PASSWORD)
        )
        self.sockets: list[WebSocketRoute] = []
        self._welcomes = 0
        page.route_web_socket("**/ws", self._connect)
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _connect(self, socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        self.sockets.append(socket)

    def _count(self, frame: str | bytes) -> None:
        self._welcomes += '"welcome"' in str(frame)

    def until(self, holds: Callable[[], bool]) -> None:
        """While the page goes on living: what it says and hears passes through this thread."""
        for _ in range(3000):
            if holds():
                return
            self.page.wait_for_timeout(10)
        raise TimeoutError

    def cut(self) -> None:
        """Returns when the page is back: cut twice before that, it would take sockets for blocked."""
        before = self._welcomes
        self.sockets[-1].close()
        self.page.evaluate("dispatchEvent(new Event('online'))")
        self.until(lambda: self._welcomes > before)

    def sign_in(self) -> None:
        self.page.get_by_label("Email").fill(self.email)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        self.field.wait_for()

    @property
    def field(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    def send(self, text: str) -> None:
        self.field.fill(text)
        self.field.press("Enter")

    def stop(self) -> dict[str, Any]:
        """Where the engine is held; what is stored of the answer then."""
        self.until(lambda: paced(self.house).is_held)
        self.page.get_by_role("button", name="Stop the answer").click()
        expect(self.page.get_by_text("Stopped.", exact=True)).to_be_visible()
        expect(self.page.get_by_role("button", name="Send")).to_be_visible()
        return stored(self.page)

    def wait_for_end(self, answers: int = 1) -> None:
        expect(self.page.locator(".receipt")).to_have_count(answers)

    def answer(self) -> str:
        """What the page shows of the last one: nothing before its first word."""
        last = self.page.locator(".answer").last.locator(".prose")
        return "".join(last.all_inner_texts())

    def start_anew(self) -> None:
        self.page.keyboard.press("Control+Shift+o")
        expect(self.page.locator("article")).to_have_count(0)


@contextlib.contextmanager
def signed_in(chromium: Browser, house: Serving) -> Iterator[Visitor]:
    """In a new conversation."""
    with contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        visitor = Visitor(page, house)
        page.goto(house.site.url)
        visitor.sign_in()
        yield visitor


@pytest.fixture
def visitor(chromium: Browser, real_house: Serving) -> Iterator[Visitor]:
    with signed_in(chromium, real_house) as visitor:
        yield visitor
        paced(real_house).release()


@pytest.mark.parametrize("cuts", [CUTS, pytest.param(MANY, marks=pytest.mark.long)])
def test_an_answer_that_is_cut_many_times_is_the_undisturbed_one(visitor: Visitor, cuts: int):
    visitor.send(LONG)
    visitor.wait_for_end()
    undisturbed, before = visitor.answer(), stored(visitor.page)
    visitor.start_anew()
    engine, seen = paced(visitor.house), 0

    engine.hold(has_said(0))
    visitor.send(LONG)
    for place in range(1, cuts + 1):
        engine.hold(has_said(place * BEATS))
        if place % 2:  # every other cut comes while words are on their way
            seen = len(wait_for_more(visitor.page, seen))
        visitor.cut()
    visitor.until(lambda: engine.is_held)
    engine.release()
    visitor.wait_for_end()

    assert len(visitor.sockets) > cuts
    assert before["response"]["receipt"]["output_tokens"] > cuts * BEATS
    assert visitor.answer() == undisturbed
    assert stored(visitor.page)["text"] == before["text"]


class State(NamedTuple):
    """Of an answer that is stopped in it; None: it has no receipt, for it never had a seat."""

    asked: str
    step: Described
    said_tokens: int | None


STATES = {
    "waiting": State(LONG, somebody_waits, None),
    "reading": State(READING, reads, 0),
    "at its first word": State(READING, has_said(0), 1),
    "in the middle": State(LONG, has_said(3), 4),
    "before its last word": State(LONG, has_said(SHORT - 2), SHORT - 1),
}

LATER = ("in the middle", "before its last word")
"""To what is stopped they are as one that has begun."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LATER else ()) for name in STATES]
)
def test_an_answer_is_stopped_whatever_it_is_at(
    visitor: Visitor, name: str, monkeypatch: pytest.MonkeyPatch
):
    """When it is written the first time, and once more."""
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", Limits(max_output_tokens=SHORT))
    state, page = STATES[name], visitor.page
    with crowded(visitor.house) if name == "waiting" else contextlib.nullcontext():
        paced(visitor.house).hold(state.step)
        visitor.send(state.asked)
        expect_stopped(visitor, visitor.stop(), state)
        paced(visitor.house).hold(state.step)
        page.get_by_role("button", name="Answer once more").click()
        expect_stopped(visitor, visitor.stop(), state)

    expect(page.locator(".answer .versions")).to_have_text("2/2")
    visitor.send("Say yes.")
    visitor.wait_for_end(answers=1 if name == "waiting" else 2)


def expect_stopped(visitor: Visitor, message: dict[str, Any], state: State) -> None:
    """All that was said is kept, that of the step in flight included; nothing came behind it."""
    response, receipt = message["response"], message["response"]["receipt"]
    assert response["status"] == "cancelled"
    assert letters(visitor.answer()) == letters(message["text"])
    if receipt is None:
        assert state.said_tokens is None
    else:
        assert receipt["output_tokens"] == state.said_tokens
        is_whole = receipt["prompt_tokens"] > len(state.asked.split())
        assert is_whole == (state.step is not reads)


@contextlib.contextmanager
def crowded(house: Serving) -> Iterator[None]:
    """Somebody else is being answered, for as long as this lasts."""
    engine = paced(house)
    job_id, playing = house.do(answered(engine))
    try:
        yield
    finally:
        house.do(engine.cancel(job_id))
        house.until(playing.done)


async def answered(engine: Engine) -> tuple[JobId, asyncio.Task[Any]]:
    job = a_job(await first_prompt(engine, LONG), owner="ben", limits=WITHOUT_END)
    return job.job_id, asyncio.create_task(play(engine, job))


def test_a_restart_is_told_from_a_lost_network(visitor: Visitor):
    page, status = visitor.page, visitor.page.get_by_role("status")
    visitor.send("Hello.")
    visitor.wait_for_end()

    def gone(route: Route) -> None:
        route.abort()

    page.route("**/api/**", gone)
    page.route_web_socket("**/ws", lambda socket: socket.close())

    visitor.sockets[-1].close(code=1012)
    expect(status.filter(has_text="Keepwarm is restarting")).to_be_visible()
    visitor.field.fill("said meanwhile")
    visitor.field.press("Enter")
    expect(page.locator(".question")).to_have_count(2)
    page.unroute("**/api/**", gone)

    # What was sent meanwhile goes out by itself, by whatever road there is.
    visitor.wait_for_end(answers=2)


def test_a_login_that_ended_is_asked_for_again_and_nothing_written_is_lost(visitor: Visitor):
    page = visitor.page
    visitor.send("Hello.")
    visitor.wait_for_end()
    visitor.field.fill("half a thought")

    page.evaluate(
        """() => fetch("/api/logout", {method: "POST", headers: {"x-csrf-token":
            document.cookie.split("; ").find(one => one.startsWith("kw_csrf=")).slice(8)}})"""
    )
    page.get_by_text("Your login has ended.").wait_for()
    visitor.sign_in()

    visitor.wait_for_end()
    expect(visitor.field).to_have_value("half a thought")


@pytest.mark.usefixtures("one_day")
def test_a_quota_is_named_with_when_there_is_room_again(visitor: Visitor):
    quotas = visitor.house.service.quotas
    visitor.house.do(quotas.set_for_user(visitor.user_id, QuotaKind.REQUESTS, 1))
    visitor.send("Hello.")
    visitor.wait_for_end()

    visitor.send("Once more.")

    alert = visitor.page.get_by_role("alert")
    expect(alert).to_contain_text("quota of messages is used up (1 a day).")
    expect(alert).to_contain_text("There is room again from")
    expect(visitor.field).to_have_value("Once more.")


def test_a_page_too_many_says_so_and_comes_in_when_there_is_room(visitor: Visitor):
    house, quotas = visitor.house, visitor.house.service.quotas
    house.do(quotas.set_for_user(visitor.user_id, QuotaKind.SOCKETS, 1))
    other = visitor.page.context.new_page()
    other.goto(house.site.url)
    expect(other.get_by_role("status").filter(has_text="more are not allowed")).to_be_visible()

    house.do(quotas.set_for_user(visitor.user_id, QuotaKind.SOCKETS, 2))
    other.get_by_role("button", name="Try again").click()

    expect(other.get_by_text("more are not allowed")).to_have_count(0)
    expect(other.get_by_text("a slower road")).to_have_count(0)


def test_an_answer_that_the_engine_lost_is_asked_for_once_more(
    chromium: Browser, sqlite_house: Serving
):
    """A real one is lost for good only when its process keeps dying."""
    engine = engine_of(sqlite_house)
    engine.fails_with = EngineLost("gone")
    with signed_in(chromium, sqlite_house) as visitor:
        visitor.send("Hello.")
        note = visitor.page.locator(".note.failed")
        expect(note).to_contain_text("Something went wrong on the server.")

        engine.fails_with = None
        note.get_by_role("button", name="Answer once more").click()

        visitor.wait_for_end()
        expect(visitor.page.locator(".answer .versions")).to_have_text("2/2")
