"""A conversation that is full, before a real server with the real model: it says so, and goes on.

The model reads so little here that one answer or one message fills it.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from app.routes import conversations
from engine.api import Engine, Limits
from engine.local import LocalEngine
from tests.browser.test_chat import ANSWER_MS, come_in, stored
from tests.kit.engines import as_served
from tests.kit.serving import Serving, serving

pytestmark = pytest.mark.browser

CONTEXT_TOKENS = 384
UNTIL_FULL = Limits(max_output_tokens=4 * CONTEXT_TOKENS, ignore_eos=True)
SHORT = Limits(max_output_tokens=8)


def said(words: int) -> str:
    """Of about so many tokens."""
    return " ".join(["word"] * words)


class Words(NamedTuple):
    """What the page says, in one language."""

    message: str
    full: str
    heard: str
    summarise: str
    too_much: str
    too_long: str
    behind_a_summary: str
    start_anew: str


SAYS = {
    "en-GB": Words(
        message="Message",
        full="The conversation is full: the model cannot read more than this at once.",
        heard="The answer ended, for the conversation is full.",
        summarise="Go on with a summary",
        too_much="With the conversation before it",
        too_long="This alone has more tokens than the model can read at once. Shorten it.",
        behind_a_summary="Even behind a summary of the conversation there would be no room for this.",
        start_anew="Start a new one",
    ),
    "de-DE": Words(
        message="Nachricht",
        full="Die Unterhaltung ist voll: Mehr kann das Modell auf einmal nicht lesen.",
        heard="Die Antwort ist zu Ende, denn die Unterhaltung ist voll.",
        summarise="Mit einer Zusammenfassung weiter",
        too_much="Mit der Unterhaltung davor",
        too_long="Das allein hat mehr Token, als das Modell auf einmal lesen kann. Kürze es.",
        behind_a_summary="Selbst hinter einer Zusammenfassung der Unterhaltung wäre dafür kein Platz.",
        start_anew="Eine neue beginnen",
    ),
}


@pytest.fixture(scope="module")
def small_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    async def open_engine() -> Engine:
        config = as_served(context_tokens=CONTEXT_TOKENS, checks=False, poison=False)
        return await LocalEngine.open(config)

    with serving(tmp_path_factory.mktemp("small"), open_engine) as running:
        yield running.until_warm()


@pytest.fixture(scope="module")
def login(chromium: Browser, small_house: Serving) -> StorageState:
    with contextlib.closing(chromium.new_context()) as context:
        page = context.new_page()
        come_in(page, small_house)
        page.get_by_label("Message", exact=True).wait_for()
        return context.storage_state()


class Visit(NamedTuple):
    page: Page
    says: Words

    def send(self, text: str) -> None:
        self.page.get_by_label(self.says.message, exact=True).fill(text)
        self.page.get_by_label(self.says.message, exact=True).press("Enter")

    def wait_for_end(self, answers: int = 1) -> None:
        expect(self.page.locator(".receipt")).to_have_count(answers, timeout=ANSWER_MS)

    def go_on(self) -> None:
        """To the conversation that begins with the summary, and what it begins with is there."""
        before = self.page.url
        self.page.get_by_role("button", name=self.says.summarise).click()
        self.page.wait_for_function(
            "before => location.href !== before", arg=before, timeout=ANSWER_MS
        )
        expect(self.page.locator(".question")).to_have_count(1)
        self.wait_for_end()


@pytest.fixture(params=["en-GB", pytest.param("de-DE", marks=pytest.mark.long)])
def visit(
    request: pytest.FixtureRequest, chromium: Browser, small_house: Serving, login: StorageState
) -> Iterator[Visit]:
    """In a new conversation, in each language."""
    with contextlib.closing(
        chromium.new_context(storage_state=login, locale=request.param)
    ) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(small_house.site.url)
        visit = Visit(page, SAYS[request.param])
        page.get_by_label(visit.says.message, exact=True).wait_for()
        yield visit


def test_an_answer_that_fills_the_context_says_so_and_goes_on(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
):
    page, says = visit.page, visit.says
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", UNTIL_FULL)
    visit.send(said(200))
    visit.wait_for_end()

    expect(page.locator(".note")).to_contain_text(says.full)
    expect(page.get_by_role("status").filter(has_text=says.heard)).to_have_count(1)
    expect(page.locator(".note button")).to_have_text(says.summarise)
    visit.go_on()
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", SHORT)
    visit.send("And now?")
    visit.wait_for_end(answers=2)

    assert stored(page)["response"]["receipt"]["output_tokens"] > 0
    expect(page.get_by_text(says.full)).to_have_count(0)


def test_a_message_that_has_no_room_goes_along_to_where_it_has(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
):
    """Also where the first message alone leaves no room to ask for a summary of it."""
    page, says = visit.page, visit.says
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", SHORT)
    visit.send(said(290))
    visit.wait_for_end()
    text = said(100)
    visit.send(text)

    expect(page.get_by_role("alert")).to_contain_text(says.too_much)
    visit.go_on()
    expect(page.get_by_label(says.message, exact=True)).to_have_value(text)
    page.get_by_label(says.message, exact=True).press("Enter")
    visit.wait_for_end(answers=2)

    expect(page.locator(".question p").last).to_have_text(text)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_message_that_no_summary_makes_room_for_begins_anew(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
):
    page, says = visit.page, visit.says
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", SHORT)
    visit.send(said(100))
    visit.wait_for_end()
    text = said(290)
    visit.send(text)
    page.get_by_role("button", name=says.summarise).click()

    expect(page.get_by_role("alert")).to_contain_text(says.behind_a_summary)
    page.get_by_role("button", name=says.start_anew).click()
    expect(page.locator(".question")).to_have_count(0)
    expect(page.get_by_label(says.message, exact=True)).to_have_value(text)
    page.get_by_label(says.message, exact=True).press("Enter")
    visit.wait_for_end()

    expect(page.locator(".question p")).to_have_text(text)


def test_a_message_that_is_too_long_by_itself_is_to_be_shortened(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
):
    """No way is offered that would meet the same again."""
    page, says = visit.page, visit.says
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", SHORT)
    visit.send("Hello.")
    visit.wait_for_end()
    text = said(450)
    visit.send(text)

    expect(page.get_by_role("alert")).to_contain_text(says.too_long)
    expect(page.get_by_role("alert").get_by_role("button")).to_have_count(0)
    expect(page.get_by_label(says.message, exact=True)).to_have_value(text)
    visit.send("Hello again.")
    visit.wait_for_end(answers=2)
