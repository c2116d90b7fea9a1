"""What the page does when something fails: the network, a login, a quota, the engine. Nothing is lost by it."""

import contextlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, WebSocketRoute, expect

from app.db.types import QuotaKind
from app.ids import UserId, new_user_id
from engine.errors import EngineLost
from tests.kit.peers import engine_of
from tests.kit.serving import Serving
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

CUTS = 20
BEATS = 6
"""Tokens, of one letter each, between two cuts."""


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

    def cut(self) -> None:
        """Returns when the page is back: cut twice before that, it would take sockets for blocked."""
        before = self._welcomes
        self.sockets[-1].close()
        self.page.evaluate("dispatchEvent(new Event('online'))")
        for _ in range(3000):
            if self._welcomes > before:
                return
            self.page.wait_for_timeout(10)
        raise TimeoutError

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

    def wait_for_end(self, answers: int = 1) -> None:
        expect(self.page.locator(".receipt")).to_have_count(answers)

    def answer(self) -> str:
        return self.page.locator(".answer .prose").last.inner_text()

    def wait_for_letters(self, count: int) -> None:
        self.page.wait_for_function(
            "n => document.querySelector('.answer .prose')?.innerText.length >= n", arg=count
        )

    def start_anew(self) -> None:
        self.page.keyboard.press("Control+Shift+o")
        expect(self.page.locator("article")).to_have_count(0)


@pytest.fixture
def visitor(chromium: Browser, sqlite_house: Serving) -> Iterator[Visitor]:
    """Signed in, in a new conversation."""
    engine = engine_of(sqlite_house)
    engine.ends_after = CUTS * BEATS + 30
    with contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        visitor = Visitor(page, sqlite_house)
        page.goto(sqlite_house.site.url)
        visitor.sign_in()
        yield visitor
    engine.fails_with = None
    sqlite_house.call(engine.release)


def test_an_answer_that_is_cut_twenty_times_is_the_undisturbed_one(visitor: Visitor):
    visitor.send("Tell me of the sea.")
    visitor.wait_for_end()
    undisturbed = visitor.answer()
    visitor.start_anew()
    house, engine = visitor.house, engine_of(visitor.house)

    engine.hold(1)
    visitor.send("Tell me of the sea.")
    for place in range(1, CUTS + 1):
        house.call(engine.extend, 1 + place * BEATS)
        if place % 2:  # every other cut comes while letters are on their way
            visitor.wait_for_letters(place * BEATS)
        visitor.cut()
    house.call(engine.release)
    visitor.wait_for_end()

    assert len(visitor.sockets) > CUTS
    assert visitor.answer() == undisturbed


@pytest.mark.parametrize("letters", [0, 4], ids=["before its first word", "in the middle"])
@pytest.mark.parametrize("again", [False, True], ids=["the first time", "once more"])
def test_an_answer_is_stopped_whatever_it_is_at(visitor: Visitor, *, letters: int, again: bool):
    house, engine, page = visitor.house, engine_of(visitor.house), visitor.page
    if again:
        visitor.send("Tell me of the sea.")
        visitor.wait_for_end()
    house.call(engine.hold, letters and letters + 1)
    if again:
        page.get_by_role("button", name="Answer once more").click()
    else:
        visitor.send("Tell me of the sea.")
    if letters:
        visitor.wait_for_letters(letters)

    page.get_by_role("button", name="Stop the answer").click()

    expect(page.get_by_text("Stopped.", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".answer .versions")).to_have_count(int(again))
    house.call(engine.release)
    visitor.send("And of the land?")
    visitor.wait_for_end(answers=2)


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


def test_an_answer_that_the_engine_lost_is_asked_for_once_more(visitor: Visitor):
    engine = engine_of(visitor.house)
    engine.fails_with = EngineLost("gone")
    visitor.send("Hello.")
    note = visitor.page.locator(".note.failed")
    expect(note).to_contain_text("Something went wrong on the server.")

    engine.fails_with = None
    note.get_by_role("button", name="Answer once more").click()

    visitor.wait_for_end()
    expect(visitor.page.locator(".answer .versions")).to_have_text("2/2")
