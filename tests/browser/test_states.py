"""What the page says and does by itself, in states that a visit seldom meets; no model is needed."""

import contextlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

from engine.api import JobClass
from tests.browser.test_chat import SCHEMES, axe_faults, come_in, quiet, send, wait_for_end
from tests.kit.echo import REPLY_TOKENS
from tests.kit.peers import engine_of
from tests.kit.serving import Serving

pytestmark = pytest.mark.browser

CODE = "Try this:\n\n```python\nprint('warm')\n```\n\nIt is short."
MOST_CHARACTERS = 1_000_000


@pytest.fixture(autouse=True)
def short(sqlite_house: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine says, where a test says nothing else."""
    monkeypatch.setattr(engine_of(sqlite_house), "ends_after", REPLY_TOKENS)


@pytest.fixture
def page(chromium: Browser, sqlite_house: Serving) -> Iterator[Page]:
    """Somebody new, in a new conversation; the page may not complain of anything."""
    with contextlib.closing(
        chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    ) as context:
        context.set_default_timeout(30_000)
        with quiet(context.new_page()) as page:
            come_in(page, sqlite_house)
            page.get_by_label("Message", exact=True).wait_for()
            yield page


def test_code_is_copied_by_its_button(
    page: Page, sqlite_house: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(engine_of(sqlite_house).says, JobClass.INTERACTIVE, CODE)
    monkeypatch.setattr(engine_of(sqlite_house), "ends_after", None)
    send(page, "How do I print a word?")
    wait_for_end(page)

    button = page.locator(".code").get_by_role("button")
    expect(button).to_have_text("Copy")
    button.click()

    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "print('warm')"


def test_the_end_of_an_answer_is_announced_and_its_tokens_are_not(page: Page):
    heard = page.locator("[role=status].visually-hidden")
    page.evaluate(
        """() => { window.heard = [];
            const region = [...document.querySelectorAll("[role=status].visually-hidden")].at(-1);
            new MutationObserver(() => window.heard.push(region.textContent))
                .observe(region, {childList: true, characterData: true, subtree: true}); }"""
    )
    send(page, "Hello.")
    wait_for_end(page)

    expect(heard.filter(has_text="The answer is complete.")).to_have_count(1)
    assert page.evaluate("window.heard") == ["Keepwarm is answering.", "The answer is complete."]


def test_a_lost_connection_is_said_to_come_again(chromium: Browser, sqlite_house: Serving):
    sockets: list[WebSocketRoute] = []
    is_cut = False

    def connect(socket: WebSocketRoute) -> None:
        if is_cut:
            socket.close()
        else:
            socket.connect_to_server()
            sockets.append(socket)

    def reach(route: Route) -> None:
        if is_cut:
            route.abort()
        else:
            route.continue_()

    with contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.route_web_socket("**/ws", connect)
        page.route("**/api/**", reach)
        come_in(page, sqlite_house)
        send(page, "Hello.")
        wait_for_end(page)

        is_cut = True
        sockets[-1].close()
        told = page.get_by_role("status").filter(has_text="Connecting again.")
        expect(told).to_have_text(
            "Connecting again. Answers go on without you, and nothing is lost."
        )
        is_cut = False

        expect(told).to_have_count(0)
        send(page, "Hello again.")
        wait_for_end(page, answers=2)


def test_more_characters_than_a_message_may_have_are_counted_and_not_cut_off(page: Page):
    field = page.get_by_label("Message", exact=True)
    field.fill("a" * (MOST_CHARACTERS + 1))

    told = page.get_by_role("status").filter(has_text="1 character too many: up to 1,000,000 fit.")
    expect(told).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    assert field.evaluate("field => field.value.length") == MOST_CHARACTERS + 1
    field.fill("a")
    expect(told).to_have_count(0)


# ---------------------------------------------------------------- for everybody


def expect_faultless(page: Page, where: str) -> None:
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert (where, scheme, axe_faults(page)) == (where, scheme, [])


@pytest.mark.parametrize(
    ("path", "says"),
    [("/setup#password=some-token", "Set the password"), ("/setup", "This link is not complete")],
)
def test_a_link_that_brings_somebody_in_has_no_accessibility_faults(
    chromium: Browser, sqlite_house: Serving, path: str, says: str
):
    with contextlib.closing(chromium.new_context()) as context:
        page = context.new_page()
        page.goto(f"{sqlite_house.site.url}{path}")
        page.get_by_text(says).first.wait_for()

        expect_faultless(page, path)


def test_what_comes_up_on_the_chat_page_has_no_accessibility_faults(
    page: Page, sqlite_house: Serving
):
    half = engine_of(sqlite_house).card.context_tokens * 2 // 3
    send(page, f"Hello there. {'x' * half}")
    wait_for_end(page)

    page.locator(".question").get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").wait_for()
    expect_faultless(page, "editor")
    page.keyboard.press("Escape")

    send(page, "x" * half)
    expect(page.get_by_role("alert")).to_contain_text("With the conversation before it")
    expect(page.get_by_role("button", name="Go on with a summary")).to_be_visible()
    expect_faultless(page, "trouble")

    search = page.get_by_label("Search in all messages")
    search.fill("hello")
    found = page.get_by_role("list", name="Found messages").get_by_role("link")
    expect(found.first).to_be_visible()
    expect_faultless(page, "found")
    search.fill("nowheretobefound")
    expect(page.get_by_text("No message has these words.")).to_be_visible()
    expect_faultless(page, "not found")


def test_who_signs_out_without_a_network_is_told_that_they_have_not(
    chromium: Browser, sqlite_house: Serving
):
    with contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        unheard: list[str] = []
        page.on("pageerror", lambda error: unheard.append(str(error)))
        come_in(page, sqlite_house)
        page.get_by_role("button", name="You and your conversations").click()
        page.get_by_role("menuitem", name="Sign out").wait_for()
        context.set_offline(True)
        page.get_by_role("menuitem", name="Sign out").click()

        told = page.get_by_role("alert").filter(has_text="You are still signed in.")
        expect(told).to_contain_text("Keepwarm cannot be reached right now.")
        expect_faultless(page, "still signed in")
        context.set_offline(False)
        page.get_by_role("button", name="You and your conversations").click()
        page.get_by_role("menuitem", name="Sign out").click()
        page.get_by_label("Email").wait_for()

    assert unheard == []
