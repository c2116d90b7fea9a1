"""The page in a real Chromium, before a real server with the real model."""

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Response,
    StorageState,
    ViewportSize,
    WebSocket,
    expect,
)

from app.ids import new_user_id
from engine.api import Engine
from tests.kit.echo import EchoEngine
from tests.kit.peers import ROOMY, engine_of
from tests.kit.server import ROOT, Server, fork_server
from tests.kit.serving import Serving, serving
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
LONG = "Write a long story about a lighthouse keeper and the sea, in many paragraphs."
ANSWER_MS = 120_000
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Without an administrator."""
    assert (ROOT / "app" / "page" / "index.html").is_file(), "build the page first: make page"
    with fork_server(
        KEEPWARM_THREADS="1", KEEPWARM_ADMIN_EMAIL="", KEEPWARM_ADMIN_PASSWORD=""
    ) as running:
        yield running


@pytest.fixture(scope="module")
def login(chromium: Browser, server: Server) -> StorageState:
    """The cookies of the first administrator, who came by the link that the start printed."""
    link = re.search(rf"{server.url}/setup#token=\S+", server.output)
    assert link is not None
    with contextlib.closing(chromium.new_context()) as context:
        page = context.new_page()
        page.goto(link.group())
        accept(page, server.admin_email, server.admin_password)
        page.get_by_label("Message", exact=True).wait_for()
        return context.storage_state()


@pytest.fixture
def context(chromium: Browser, login: StorageState) -> Iterator[BrowserContext]:
    size: ViewportSize = {"width": 1100, "height": 760}
    with contextlib.closing(chromium.new_context(viewport=size, storage_state=login)) as context:
        context.set_default_timeout(30_000)
        yield context


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """Signed in, in a new conversation; the page may not complain of anything."""
    with quiet(context.new_page()) as page:
        page.goto(server.url)
        page.get_by_label("Message", exact=True).wait_for()
        yield page


@contextlib.contextmanager
def quiet(page: Page) -> Iterator[Page]:
    """It may not complain of anything."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if _is_fault(said) else None)
    yield page
    assert complaints == []


def _is_fault(said: Any) -> bool:
    # Chromium itself reports the 401 by which a page learns that nobody is signed in.
    return said.type in ("error", "warning") and "401" not in said.text


def accept(page: Page, email: str, password: str) -> None:
    """An invitation, or the link of the first start."""
    page.get_by_label("Your name").fill("Ada")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Create the account").click()


def sign_in(page: Page, server: Server) -> None:
    page.goto(server.url)
    page.get_by_label("Email").fill(server.admin_email)
    page.get_by_label("Password").fill(server.admin_password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Message", exact=True).wait_for()


def come_in(page: Page, house: Serving) -> None:
    """Sign in as somebody new."""
    email = f"{new_user_id()}@example.org"
    house.do(house.service.accounts.create_user(email, "Somebody", PASSWORD))
    page.goto(house.site.url)
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def send(page: Page, text: str) -> None:
    field = page.get_by_label("Message", exact=True)
    field.fill(text)
    field.press("Enter")


def answer(page: Page) -> str:
    """The text of the last answer, as it stands on the page."""
    return page.locator(".answer .prose").last.inner_text()


def wait_for_more(page: Page, than: int) -> str:
    """The last answer, once it has more characters than that."""
    page.wait_for_function(
        "than => [...document.querySelectorAll('.prose')].at(-1)?.innerText.length > than", arg=than
    )
    return answer(page)


def wait_for_end(page: Page, answers: int = 1) -> None:
    expect(page.locator(".receipt")).to_have_count(answers, timeout=ANSWER_MS)


def stored(page: Page) -> dict[str, Any]:
    """The last message, as the server has it."""
    found = re.search(r"conv_\w+", page.url)
    assert found is not None
    path = f"/api/conversations/{found.group()}"
    tree = page.evaluate("path => fetch(path).then(answer => answer.json())", path)
    leaf_id = tree["conversation"]["leaf_id"]
    return next(message for message in tree["messages"] if message["id"] == leaf_id)


def coined(word: str) -> str:
    """That nobody has said here before: what an earlier try of a test left is still in the list."""
    return word + secrets.token_hex(3)


def letters(text: str) -> str:
    """What Markdown neither adds to a text nor takes from it."""
    return re.sub(r"[\W\d_]+", "", text)


def test_the_first_administrator_comes_by_the_link_that_the_start_prints_and_stays(
    context: BrowserContext, server: Server
):
    page = context.new_page()
    page.goto(server.url)
    page.get_by_role("button", name="Settings", exact=True).click()
    dialog = page.get_by_role("dialog", name="Settings")
    dialog.get_by_role("button", name="Account", exact=True).click()
    expect(dialog.get_by_text(f"{server.admin_email} · Administrator")).to_be_visible()

    dialog.get_by_role("button", name="Remove the account").click()
    sure = page.get_by_role("dialog", name="Remove your account?")
    sure.get_by_label("Password").fill(server.admin_password)
    sure.get_by_role("button", name="Remove the account").click()

    expect(sure.get_by_role("alert")).to_contain_text("the last administrator")


def test_tokens_arrive_one_after_another(page: Page):
    send(page, LONG)

    page.get_by_role("button", name="Stop the answer").wait_for()
    first = wait_for_more(page, 0)
    second = wait_for_more(page, len(first))
    third = wait_for_more(page, len(second))
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    wait_for_end(page)

    assert letters(second).startswith(letters(first))
    assert letters(third).startswith(letters(second))


def test_an_answer_is_whole_after_a_reload_in_the_middle(page: Page):
    send(page, LONG)
    before = wait_for_more(page, 20)

    page.reload()
    seen_again = wait_for_more(page, len(before))
    page.get_by_role("button", name="Stop the answer").wait_for()
    wait_for_more(page, len(seen_again) + 100)
    page.get_by_role("button", name="Stop the answer").click()
    wait_for_end(page)

    whole = stored(page)["text"]
    assert letters(answer(page)) == letters(whole)
    assert letters(whole).startswith(letters(before))
    assert len(letters(before)) < len(letters(whole))


def test_two_tabs_show_the_same_once(page: Page, context: BrowserContext):
    send(page, "Name three rivers.")
    wait_for_end(page)
    tab = context.new_page()
    tab.goto(page.url)
    wait_for_end(tab)

    send(tab, "Which of them is the longest?")
    for one in (page, tab):
        wait_for_end(one, answers=2)

    text = letters(stored(tab)["text"])
    for one in (page, tab):
        expect(one.locator(".question")).to_have_count(2)
        expect(one.locator(".answer")).to_have_count(2)
        assert letters(answer(one)) == text


def test_the_receipt_says_what_the_stored_one_says(page: Page):
    send(page, "Name one river.")
    wait_for_end(page)

    send(page, "And one mountain.")
    wait_for_end(page, answers=2)

    receipt = stored(page)["response"]["receipt"]
    computed, cached = receipt["computed_tokens"], receipt["cached_tokens"]
    line = page.locator(".receipt summary").last
    expect(line).to_contain_text(f"{computed} new, {cached} from cache, first token ")
    assert computed < cached
    line.click()
    expect(page.locator(".receipt").last).to_contain_text("from this conversation")


def test_stop_keeps_what_was_written(page: Page):
    send(page, LONG)
    before = wait_for_more(page, 20)

    page.get_by_role("button", name="Stop the answer").click()
    wait_for_end(page)

    message = stored(page)
    assert message["response"]["status"] == "cancelled"
    assert letters(answer(page)) == letters(message["text"])
    assert letters(answer(page)).startswith(letters(before))
    expect(page.get_by_text("Stopped.", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_15_a_stopped_answer_is_continued(page: Page):
    send(page, LONG)
    wait_for_more(page, 40)
    page.get_by_role("button", name="Stop the answer").click()
    wait_for_end(page)
    before = stored(page)["text"]

    page.get_by_role("button", name="Continue", exact=True).press("Enter")
    wait_for_more(page, len(before) + 20)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("button", name="Stop the answer").click()
    wait_for_end(page)

    expect(page.locator(".answer .versions")).to_have_text("2/2")
    assert stored(page)["text"].startswith(before)
    assert letters(answer(page)) == letters(stored(page)["text"])


def test_16_versions_are_made_switched_and_remembered(page: Page):
    send(page, "Name three rivers.")
    wait_for_end(page)
    first = stored(page)

    page.get_by_role("button", name="Answer once more").press("Enter")
    versions, field = page.locator(".answer .versions"), page.get_by_label("Message", exact=True)
    expect(versions).to_have_text("2/2")
    expect(field).to_be_focused()
    wait_for_end(page)
    page.get_by_role("button", name="The version before").press("Enter")
    expect(versions).to_have_text("1/2")
    expect(page.get_by_role("button", name="The next version")).to_be_focused()
    assert letters(answer(page)) == letters(first["text"])
    page.reload()
    expect(versions).to_have_text("1/2")
    assert stored(page)["id"] == first["id"]

    page.get_by_role("button", name="Edit", exact=True).click()
    editor = page.get_by_label("Edit the message")
    expect(editor).to_be_focused()
    editor.fill("Name three lakes.")
    editor.press("Enter")
    expect(page.locator(".question .versions")).to_have_text("2/2")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    wait_for_end(page)
    expect(page.locator(".question p")).to_have_text("Name three lakes.")
    expect(versions).to_have_count(0)


def test_16_a_copy_goes_its_own_way(page: Page, context: BrowserContext):
    send(page, "Name three rivers.")
    wait_for_end(page)
    original, said = page.url, stored(page)["text"]

    page.get_by_role("button", name="Go on from here in a new conversation").last.click()
    page.wait_for_function("before => location.href !== before", arg=original)
    expect(page.locator(".question")).to_have_count(1)
    assert stored(page)["text"] == said
    tab = context.new_page()
    tab.goto(page.url)
    wait_for_end(tab)
    page.get_by_role("button", name="Delete from here on").first.click()
    page.get_by_role("button", name="Delete", exact=True).click()

    for one in (page, tab):
        expect(one.locator("article")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.goto(original)
    wait_for_end(page)
    assert stored(page)["text"] == said


def choose(page: Page, title: str, choice: str) -> None:
    """Of what can be done with a conversation in the list."""
    page.get_by_role("listitem").filter(has_text=title).first.hover()
    page.get_by_role("button", name=f"More about “{title}”").first.click()
    page.get_by_role("menuitem", name=choice).click()


def test_a_message_is_found_and_shown_in_its_branch(page: Page):
    word = coined("quokkafruit")
    send(page, f"Name one {word}.")
    wait_for_end(page)
    address = page.url
    page.get_by_role("button", name="Edit", exact=True).click()
    editor = page.get_by_label("Edit the message")
    editor.fill("Name one river.")
    editor.press("Enter")
    expect(page.locator(".question p")).to_have_text("Name one river.")
    wait_for_end(page)
    page.get_by_role("button", name="New conversation", exact=True).click()

    search = page.get_by_label("Search in all messages")
    search.fill(word[:-2])
    found = page.get_by_role("list", name="Found messages").get_by_role("link")
    expect(found.locator("mark").first).to_have_text(re.compile(word, re.IGNORECASE))
    found.last.click()

    expect(page.locator(".question p")).to_have_text(f"Name one {word}.")
    assert page.url == address
    search.press("Escape")
    expect(found).to_have_count(0)


def test_the_palette_finds_and_does(page: Page):
    word = coined("wallabyfern")
    send(page, f"Name one {word}.")
    wait_for_end(page)
    address = page.url
    page.keyboard.press("Control+Shift+o")
    expect(page.locator("article")).to_have_count(0)

    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Find and do")
    expect(field).to_be_focused()
    assert axe_faults(page) == []
    field.press_sequentially(word)
    options = page.get_by_role("group", name="Messages").get_by_role("option")
    expect(options.last.locator("mark")).not_to_have_count(0)
    field.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    field.press("Enter")
    wait_for_end(page)
    assert page.url == address

    page.keyboard.press("Control+k")
    field.fill("pin this")
    field.press("Enter")
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    skip = page.get_by_role("button", name="Go to the message field")
    skip.focus()
    assert axe_faults(page) == []
    skip.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Control+/")
    keys = page.get_by_role("dialog", name="Keys on the keyboard")
    expect(keys).to_contain_text("Stop the answer")
    assert axe_faults(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Escape")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Edit the message")).to_have_value(f"Name one {word}.")


def test_the_language_is_chosen_and_kept(page: Page):
    page.get_by_role("button", name="You and your conversations").click()
    page.get_by_role("menuitem", name="Deutsch").click()

    expect(page.get_by_role("button", name="Neue Unterhaltung", exact=True)).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "de"
    page.reload()
    send_field = page.get_by_label("Nachricht", exact=True)
    send_field.fill("Nenne einen Fluss.")
    send_field.press("Enter")
    wait_for_end(page)
    expect(page.locator(".receipt summary")).to_contain_text("aus dem Cache")


def test_a_word_that_is_still_composed_is_not_sent(page: Page, context: BrowserContext):
    field = page.get_by_label("Message", exact=True)
    field.focus()
    browser = context.new_cdp_session(page)

    browser.send("Input.imeSetComposition", {"text": "に", "selectionStart": 1, "selectionEnd": 1})
    browser.send(
        "Input.dispatchKeyEvent",
        {"type": "rawKeyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229},
    )
    browser.send("Input.insertText", {"text": "日本"})

    expect(field).to_have_value("日本")
    expect(page.locator("article")).to_have_count(0)
    field.press("Enter")
    expect(page.locator(".question p")).to_have_text("日本")
    # It may be short, and be over before anybody can stop it.
    written = page.get_by_role("button", name="Stop the answer")
    written.or_(page.locator(".receipt")).first.wait_for()
    page.keyboard.press("Escape")
    wait_for_end(page)


def test_conversations_are_pinned_kept_warm_renamed_and_archived(page: Page):
    said, title = f"Name one {coined('wombatstone')}.", coined("Stones")
    send(page, said)
    wait_for_end(page)

    choose(page, said, "Pin")
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    choose(page, said, "Keep it warm")
    expect(page.get_by_role("img", name="Kept warm")).to_be_visible()
    choose(page, said, "Rename…")
    page.get_by_label("Title").fill(title)
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("link", name=title)).to_be_visible()
    choose(page, title, "Archive")
    expect(page.get_by_role("link", name=title)).to_have_count(0)

    page.get_by_role("button", name="Archive", exact=True).click()
    choose(page, title, "Unpin")
    choose(page, title, "Back into the list")
    expect(page.get_by_text("Nothing is archived.")).to_be_visible()
    page.get_by_role("button", name="Back to the list").click()
    expect(page.get_by_role("link", name=title)).to_be_visible()


def test_conversations_go_out_as_files_and_come_back(page: Page, tmp_path: Path):
    word = coined("numbatleaf")
    asked = f"Name one {word}."
    send(page, asked)
    wait_for_end(page)
    said = letters(stored(page)["text"])

    with page.expect_download() as whole:
        choose(page, asked, "Export with all versions")
    with page.expect_download() as readable:
        choose(page, asked, "Export as Markdown")
    file = tmp_path / "conversation.json"
    whole.value.save_as(file)
    assert word in readable.value.path().read_text()
    page.get_by_label("File of conversations").set_input_files(file)
    expect(page.get_by_role("status").filter(has_text="Imported conversations: 1")).to_be_visible()
    links = page.get_by_role("link", name=asked)
    expect(links).to_have_count(2)
    before = page.url
    links.and_(page.locator("a:not([aria-current])")).click()

    page.wait_for_function("before => location.href !== before", arg=before)
    wait_for_end(page)
    assert letters(answer(page)) == said


def test_a_draft_outlives_a_reload_and_an_expired_login(
    page: Page, context: BrowserContext, server: Server
):
    field = page.get_by_label("Message", exact=True)
    field.fill("half a thought")

    page.reload()
    expect(field).to_have_value("half a thought")
    context.clear_cookies(name="kw_session")
    page.reload()
    page.get_by_role("button", name="Sign in").wait_for()
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert (scheme, axe_faults(page)) == (scheme, [])
    sign_in(page, server)

    expect(field).to_have_value("half a thought")


@pytest.mark.row("drafts")
def test_unsent_text_leaves_the_page_only_where_somebody_said_so(page: Page):
    sockets: list[WebSocket] = []
    said: list[dict[str, Any]] = []

    def opened(socket: WebSocket) -> None:
        sockets.append(socket)
        socket.on("framesent", lambda frame: said.append(json.loads(frame)))

    page.on("websocket", opened)
    page.reload()
    field = page.get_by_label("Message", exact=True)
    switch = page.get_by_role("switch", name="Prepare while I type")
    expect(switch).not_to_be_checked()
    send(page, "Name three rivers.")
    wait_for_end(page)
    field.press_sequentially("And three mountains", delay=20)
    assert [frame["state"] for frame in said if frame["type"] == "presence"] == ["typing"]
    assert "draft" not in [frame["type"] for frame in said]

    with sockets[-1].expect_event("framesent", lambda frame: "And three mountains" in frame):
        switch.check()
    with page.expect_websocket() as again:
        page.reload()
    expect(switch).to_be_checked()
    with again.value.expect_event("framesent", lambda frame: '"draft"' in frame):
        field.press_sequentially(" of France", delay=20)
    with again.value.expect_event("framesent", lambda frame: '"text":""' in frame):
        switch.uncheck()


def test_a_message_that_is_too_long_comes_back_with_the_reason(page: Page):
    text = " ".join(["word"] * 20_000)

    send(page, text)

    expect(page.get_by_role("alert")).to_contain_text("tokens")
    field = page.get_by_label("Message", exact=True)
    expect(field).to_have_value(text)
    field.fill("")
    expect(page.get_by_role("alert")).to_have_count(0)


READY = """tokens => {
    const told = document.querySelector("header .warmth.warm").innerText.split("tokens")[0];
    return Number(told.replace(/\\D/g, "")) >= tokens;
}"""
"""Whether so many are said to be warm by now: it is told at most twice a second."""


def test_the_page_tells_what_is_warm(page: Page):
    send(page, "Name one river.")
    wait_for_end(page)

    tokens = stored(page)["response"]["receipt"]["prompt_tokens"]
    expect(page.locator("header .warmth.warm")).to_contain_text("tokens of it are ready")
    page.wait_for_function(READY, arg=tokens)
    dot = page.locator(".current").get_by_role("img", name=re.compile("^warm: .* are ready"))
    expect(dot).to_be_visible()

    page.get_by_text("% of the context").click()
    page.get_by_label("Message", exact=True).fill("a" * 400)
    receipt = stored(page)["response"]["receipt"]
    used = receipt["prompt_tokens"] + receipt["output_tokens"]
    expect(page.locator("form")).to_contain_text(f"This conversation takes {used} of the ")
    page.get_by_text("% of the context").click()
    expect(page.locator("form")).to_contain_text("What you have written is about 100 tokens.")


def test_the_page_has_no_accessibility_faults(page: Page):
    send(page, "Say hello.")
    wait_for_end(page)
    page.locator(".receipt summary").click()

    for width in (3840, 320):
        page.set_viewport_size({"width": width, "height": 700})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

            assert (width, scheme, axe_faults(page)) == (width, scheme, [])
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        line = page.locator(".answer .prose").bounding_box()
        assert line is not None and line["width"] <= 800  # longer ones are hard to read


def axe_faults(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    faults: list[str] = page.evaluate(
        "axe.run().then(({violations}) => violations.map(v => v.id + ' ' + v.nodes[0].html))"
    )
    return faults


# ---------------------------------------------------------------- much of it

NODES = "() => document.querySelectorAll('.thread *').length"
WATCH = """() => {
    window.changed = new Set();
    new MutationObserver(seen => seen.forEach(({target}) => {
        const node = target instanceof Element ? target : target.parentElement;
        window.changed.add(node.closest("article")?.dataset.id ?? node.closest("[class]").className);
    })).observe(document.querySelector(".thread"),
        {subtree: true, childList: true, characterData: true});
}"""
"""What is drawn anew; that buttons rest while an answer comes is not."""

SCROLL_UP = """() => {
    const first = document.querySelector("article");
    document.querySelector(".thread").scrollTop = 0;
    return [first.dataset.id, first.getBoundingClientRect().top];
}"""
"""Which message is the first then, and how far from the top."""


def messages_in(answers: list[Response]) -> int:
    """Those of a conversation that the page was given in them, each as often as it was."""
    found = 0
    for answer in answers:
        if re.search(r"/conversations/conv_\w+(/messages)?\?", answer.url):
            told = answer.json()
            found += len(told["items"] if "/messages?" in answer.url else told["messages"])
    return found


def long_file(folder: Path, messages: int) -> Path:
    """A conversation in the form that another product exports; it is called like the folder."""
    mapping = {
        f"m{place}": {
            "id": f"m{place}",
            "parent": f"m{place - 1}" if place else None,
            "children": [f"m{place + 1}"] if place + 1 < messages else [],
            "message": {
                "id": f"m{place}",
                "author": {"role": "assistant" if place % 2 else "user"},
                "create_time": 1_700_000_000.0 + place,
                "content": {"content_type": "text", "parts": [f"Number {place}."]},
            },
        }
        for place in range(messages)
    }
    file = folder / "long.json"
    told = {"title": folder.name, "create_time": 1_700_000_000.0, "mapping": mapping}
    file.write_text(json.dumps([told | {"current_node": f"m{messages - 1}"}]))
    return file


@pytest.fixture
def roomy(chromium: Browser, tmp_path: Path) -> Iterator[tuple[Page, EchoEngine]]:
    """Signed in to a server whose engine reads a long conversation in no time; and that engine."""

    async def open_engine() -> Engine:
        return EchoEngine(ROOMY)

    size: ViewportSize = {"width": 1100, "height": 760}
    with (
        serving(tmp_path / "house", open_engine) as house,
        contextlib.closing(chromium.new_context(viewport=size)) as context,
    ):
        context.set_default_timeout(30_000)
        with quiet(context.new_page()) as page:
            come_in(page, house)
            page.get_by_label("Message", exact=True).wait_for()
            yield page, engine_of(house)


@pytest.mark.row("29")
def test_of_five_thousand_messages_only_those_are_read_and_drawn_that_are_looked_at(
    roomy: tuple[Page, EchoEngine], tmp_path: Path
):
    page, engine = roomy
    page.get_by_label("File of conversations").set_input_files(long_file(tmp_path, 5_000))
    page.get_by_role("link", name=tmp_path.name, exact=True).wait_for()
    answers: list[Response] = []
    # Playwright marks whom it tells, and a builtin lets nobody do that.
    page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108
    page.get_by_role("link", name=tmp_path.name, exact=True).click()
    articles = page.locator("article")
    expect(articles).to_have_count(40)
    expect(articles.last).to_contain_text("Number 4999")
    assert messages_in(answers) == 100
    assert page.evaluate(NODES) < 2_000

    page.evaluate(WATCH)
    page.get_by_label("Message", exact=True).press_sequentially("typed into a long conversation")
    assert page.evaluate("[...window.changed]") == []
    engine.hold(after_beats=5)
    page.get_by_label("Message", exact=True).press("Enter")
    page.get_by_role("button", name="Stop the answer").wait_for()
    expect(articles.last.locator(".prose")).to_contain_text(re.compile(r"\w"))
    page.keyboard.press("Escape")
    wait_for_end(page)
    last_two = page.evaluate(
        "[...document.querySelectorAll('article')].slice(-2).map(a => a.dataset.id)"
    )
    changed = page.evaluate("[...window.changed].filter(id => id.startsWith('msg_'))")
    assert set(changed) <= set(last_two)
    assert articles.count() <= 42

    looked_at, top = page.evaluate(SCROLL_UP)
    expect(articles.first).to_contain_text("Number 4922")
    box = page.locator(f"[data-id='{looked_at}']").bounding_box()
    assert box is not None
    assert abs(box["y"] - top) < 2
    assert page.evaluate(NODES) < 4_000
    assert messages_in(answers) <= 300

    page.get_by_label("Search in all messages").fill("4321")
    page.get_by_role("list", name="Found messages").get_by_role("link").first.click()
    expect(page.locator("article", has_text="Number 4321.")).to_be_in_viewport()
    assert messages_in(answers) <= 900


def test_on_a_phone_what_can_be_done_with_an_earlier_message_comes_by_a_button(
    chromium: Browser, login: StorageState, server: Server, tmp_path: Path
):
    size: ViewportSize = {"width": 360, "height": 740}
    with contextlib.closing(
        chromium.new_context(viewport=size, storage_state=login, is_mobile=True, has_touch=True)
    ) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(server.url)
        page.get_by_role("button", name="Open the list of conversations").tap()
        page.get_by_label("File of conversations").set_input_files(long_file(tmp_path, 4))
        page.get_by_role("link", name=tmp_path.name, exact=True).tap()
        question = page.locator(".question").first
        edit = question.get_by_role("button", name="Edit", exact=True)
        expect(page.locator("article").last.get_by_role("button", name="Copy")).to_be_visible()
        expect(edit).to_be_hidden()

        question.get_by_role("button", name="What can be done with this message").tap()

        assert axe_faults(page) == []
        edit.tap()
        expect(page.get_by_label("Edit the message")).to_have_value("Number 0.")


TYPE = "text => { for (const key of text) document.execCommand('insertText', false, key); }"
"""Key after key, however long the page takes for each."""


@pytest.mark.row("31")
def test_a_paste_of_a_megabyte_is_said_to_be_too_long_before_it_is_sent(
    page: Page, context: BrowserContext
):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = ("word " * 11 + "\n") * (990_000 // 56)
    page.evaluate("text => navigator.clipboard.writeText(text)", text)
    kept = "() => Object.values(localStorage).some(text => text.length > 900_000)"
    page.evaluate(
        "() => { const put = Storage.prototype.setItem; window.puts = 0;"
        "Storage.prototype.setItem = function (...a) { window.puts++; put.apply(this, a); } }"
    )
    field = page.get_by_label("Message", exact=True)
    field.focus()
    page.keyboard.press("Control+v")
    expect(page.get_by_text("It will not fit.")).to_be_visible()
    page.wait_for_function(kept)
    page.evaluate(TYPE, "and five more")
    puts = page.evaluate("window.puts")
    page.reload()

    expect(field).to_have_value(text + "and five more")
    assert puts < len("and five more")


# ---------------------------------------------------------------- without a socket


@pytest.mark.row("33")
def test_where_websockets_are_blocked_the_page_says_so_and_goes_on(
    chromium: Browser, house: Serving
):
    with contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(30_000)
        context.route_web_socket("**/ws", lambda socket: socket.close())
        page = context.new_page()
        come_in(page, house)
        page.get_by_text("a slower road is used instead").wait_for()

        send(page, "Are you there?")
        assert wait_for_more(page, 0)
        page.get_by_role("button", name="Stop").wait_for(state="detached")
        page.reload()
        page.get_by_text("Are you there?").first.wait_for()
        page.get_by_text("a slower road is used instead").wait_for()

        # Another such page hears of what is said here, and shows it.
        other = context.new_page()
        other.goto(page.url)
        other.get_by_text("a slower road is used instead").wait_for()
        wait_for_end(other)
        send(page, "And now?")
        for one in (other, page):
            wait_for_end(one, answers=2)
        assert answer(other) == answer(page)
        with page.expect_request("**/api/pages/*/draft") as hint:
            page.get_by_label("Message", exact=True).fill("What may be prepared")
            page.get_by_role("switch", name="Prepare while I type").check()
        assert '"text":"What may be prepared"' in (hint.value.post_data or "")
        choose(page, "Are you there?", "Pin")
        expect(other.get_by_role("heading", name="Pinned")).to_be_visible()
