"""What a person owns, in a real Chromium: a library, an account, logins, keys, and how the page looks."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from app.db.types import AccountRole
from app.ids import new_user_id
from tests.browser.test_chat import SCHEMES, accept, axe_faults, send, stored, wait_for_end
from tests.kit.db import finished
from tests.kit.server import Server
from tests.kit.server import signed_in as boss_of
from tests.kit.tab import PASSWORD, accounts

pytestmark = pytest.mark.browser

CHARTER = (
    "<title>The charter</title><body><p>" + "The ship has two masts and a bell. " * 40 + "</p>"
)


@pytest.fixture
def email(server: Server) -> str:
    """Somebody new."""
    return newcomer(server)


def newcomer(server: Server, role: AccountRole = AccountRole.MEMBER) -> str:
    address = f"{new_user_id()}@example.org"

    async def make() -> None:
        async with accounts(server) as found:
            await found.create_user(address, "Somebody", PASSWORD, role)

    finished(make())
    return address


@pytest.fixture
def office(chromium: Browser, server: Server) -> Iterator[Page]:
    """An administrator's page."""
    with signed_in(chromium, server, newcomer(server, AccountRole.ADMIN)) as page:
        yield page


@pytest.fixture
def page(chromium: Browser, server: Server, email: str) -> Iterator[Page]:
    """Signed in; it may not complain of anything but of what was refused on purpose."""
    with signed_in(chromium, server, email) as page:
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        assert complaints == []


@contextlib.contextmanager
def signed_in(chromium: Browser, server: Server, email: str) -> Iterator[Page]:
    with contextlib.closing(chromium.new_context(locale="en-US")) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(server.url)
        page.get_by_label("Email").fill(email)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.get_by_label("Message", exact=True).wait_for()
        yield page


def settings(page: Page, section: str) -> Locator:
    """The settings, opened at a section."""
    dialog = page.get_by_role("dialog", name="Settings")
    if dialog.count() == 0:
        page.get_by_role("button", name="Settings", exact=True).click()
    dialog.get_by_role("navigation").get_by_role("button", name=section, exact=True).click()
    return dialog


def close(page: Page) -> None:
    """Returns when it is closed: `settings` opens what is not there."""
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def make_persona(page: Page, name: str) -> None:
    dialog = settings(page, "Personas")
    dialog.get_by_role("button", name="New persona").click()
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Instructions").fill("You are the mate of a ship. Answer in one sentence.")
    dialog.get_by_role("button", name="Add an example").click()
    dialog.get_by_label("Question").fill("How are you?")
    dialog.get_by_label("Answer").fill("Shipshape.")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("button", name=name).first).to_contain_text("tokens")


def upload(page: Page, file: Path) -> None:
    file.write_text(CHARTER)
    dialog = settings(page, "Documents")
    dialog.get_by_label("Upload a file").last.set_input_files(file)
    expect(dialog.get_by_label("Title")).to_have_value("The charter")
    expect(dialog.get_by_label("Text", exact=True)).to_have_value(re.compile("two masts"))
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("button", name="The charter").first).to_contain_text("tokens")


def begin_with(page: Page, persona: str, document: str) -> int:
    """Choose both for the next conversation; how many tokens the page says that this is."""
    page.get_by_role("button", name="Begin with").click()
    dialog = page.get_by_role("dialog", name="Begin with")
    dialog.get_by_role("radio", name=persona).check()
    dialog.get_by_role("checkbox", name=document).check()
    told = dialog.get_by_role("status").last.inner_text()
    dialog.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Begin with")).to_contain_text(f"{persona} 1 document")
    return int(re.sub(r"\D", "", told.split("tokens")[0]))


def receipt(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = stored(page)["response"]["receipt"]
    return found


def test_what_a_conversation_begins_with_is_computed_once_and_then_found(
    page: Page, tmp_path: Path
):
    make_persona(page, "Mate")
    upload(page, tmp_path / "charter.html")
    close(page)

    tokens = begin_with(page, "Mate", "The charter")
    send(page, "How many masts are there?")
    wait_for_end(page)
    first = receipt(page)
    page.get_by_role("button", name="New conversation", exact=True).click()
    begin_with(page, "Mate", "The charter")
    send(page, "Is there a bell?")
    wait_for_end(page)
    second = receipt(page)

    assert tokens > 200
    assert first["computed_tokens"] > tokens / 2
    assert second["cached_tokens"] >= tokens
    assert second["cached_by_source"]["persona"] + second["cached_by_source"]["document"] >= tokens
    assert second["computed_tokens"] < 32
    line = page.locator(".receipt summary").last
    expect(line).to_contain_text(f"{second['computed_tokens']} new")
    line.click()
    expect(page.locator(".receipt").last).to_contain_text("from a document, shared")


def test_a_persona_has_versions_and_is_deleted_when_nothing_is_under_it(
    page: Page,
):
    make_persona(page, "Mate")
    dialog = settings(page, "Personas")
    dialog.get_by_role("button", name="Mate").first.click()
    expect(dialog.get_by_label("Answer")).to_have_value("Shipshape.")
    dialog.get_by_label("Name").fill("Bosun")
    page.keyboard.press("Escape")
    expect(dialog.get_by_label("Name")).to_have_value("Bosun")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("button", name="Bosun").first).to_contain_text("version 2")

    close(page)
    page.get_by_role("button", name="Begin with").click()
    page.get_by_role("radio", name="Bosun").check()
    page.get_by_role("button", name="Done").click()
    send(page, "Say hello.")
    wait_for_end(page)
    began = page.get_by_role("note", name="What this conversation began with")
    expect(began).to_contain_text(re.compile(r"Bosun\s+\d+ tokens"))
    dialog = settings(page, "Personas")
    dialog.get_by_role("button", name="Bosun").first.click()
    dialog.get_by_label("Instructions").fill("You are another mate.")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("button", name="Bosun").first).to_contain_text("version 3")
    close(page)
    began.get_by_role("button", name="Take the newest version").click()
    expect(began).to_contain_text(re.compile(r"Bosun\s+\d+ tokens"))
    send(page, "And now?")
    wait_for_end(page, answers=2)
    assert receipt(page)["miss_reason"] == "instructions_changed"

    dialog = settings(page, "Personas")
    remove(page, "Bosun")
    expect(page.get_by_role("alert")).to_contain_text("still in use")
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="More about “Bosun”").click()
    page.get_by_role("menuitem", name="Archive").click()
    expect(dialog.get_by_role("button", name="Bosun")).to_have_count(0)
    dialog.get_by_label("Show archived ones").check()
    expect(dialog.get_by_role("button", name="Bosun").first).to_contain_text("archived")

    conversation = stored(page)["conversation_id"]
    page.evaluate(
        """id => fetch(`/api/conversations/${id}`, {method: "DELETE", headers: {
          "x-csrf-token": document.cookie.match(/kw_csrf=([^;]*)/)[1]}})""",
        conversation,
    )
    remove(page, "Bosun")
    expect(dialog.get_by_role("button", name="Bosun")).to_have_count(0)


def test_an_administrator_publishes_a_persona_and_somebody_begins_with_it(
    page: Page, office: Page, server: Server
):
    name = f"Harbour {new_user_id()[-6:]}"
    with boss_of(server) as boss:
        boss.post("/api/groups", json={"name": f"{name} crew"}).raise_for_status()
    desk = settings(office, "Personas")
    desk.get_by_role("button", name="New persona").click()
    desk.get_by_label("Name").fill(name)
    desk.get_by_label("Instructions").fill("You are a harbour master.")
    expect(desk.get_by_label("Only me")).to_be_checked()
    desk.get_by_label("These groups and people").check()
    desk.get_by_label(f"{name} crew").check()
    desk.get_by_label("People", exact=True).fill("nobody@example.org")
    desk.get_by_role("button", name="Save").click()
    expect(desk.get_by_role("alert")).to_have_text("One of these addresses has no account here.")
    desk.get_by_label("People", exact=True).fill("")
    expect_faultless(office, "who may use it")
    desk.get_by_role("button", name="Save").click()
    row = desk.get_by_role("button", name=name).first
    expect(row).to_contain_text("published to some")
    dialog = settings(page, "Personas")
    expect(dialog.get_by_role("button", name="Assistant").first).to_be_visible()
    expect(dialog.get_by_role("button", name=name)).to_have_count(0)

    row.click()
    expect(desk.get_by_label(f"{name} crew")).to_be_checked()
    desk.get_by_label("Everybody here").check()
    desk.get_by_role("button", name="Set who may use it").click()
    expect(desk.get_by_text("Saved.")).to_be_visible()
    desk.get_by_role("button", name="Back").last.click()
    expect(row).to_contain_text("published to everybody")

    settings(page, "Documents")
    settings(page, "Personas")
    dialog.get_by_role("button", name=name).first.click()
    expect(dialog.get_by_text("Everybody here may use it.")).to_be_visible()
    expect(dialog.get_by_label("Instructions")).to_have_value("You are a harbour master.")
    expect(dialog.get_by_label("Instructions")).not_to_be_editable()
    close(page)
    page.get_by_role("button", name="Begin with").click()
    page.get_by_role("radio", name=name).check()
    page.get_by_role("button", name="Done").click()
    send(page, "Who are you?")
    wait_for_end(page)
    expect(page.get_by_role("note", name="What this conversation began with")).to_contain_text(name)

    desk.get_by_role("button", name=f"More about “{name}”").click()
    office.get_by_role("menuitem", name="Archive").click()
    expect(desk.get_by_role("button", name=name)).to_have_count(0)


def test_what_an_administrator_has_for_oneself_is_published_as_a_copy(office: Page, tmp_path: Path):
    name = f"Mate {new_user_id()[-6:]}"
    upload(office, tmp_path / "charter.html")
    make_persona(office, name)
    dialog = settings(office, "Personas")
    dialog.get_by_role("button", name=name).first.click()
    dialog.get_by_label("The charter").check()
    dialog.get_by_label("These groups and people").check()
    expect(dialog.get_by_text("“The charter” is published to fewer people")).to_be_visible()
    dialog.get_by_role("button", name="Publish", exact=True).click()

    rows = dialog.locator("button.open", has_text=name)
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="published to some")).to_have_count(1)


def test_an_old_version_is_looked_at_and_taken_up_again(page: Page, email: str, tmp_path: Path):
    upload(page, tmp_path / "charter.html")
    dialog = settings(page, "Documents")
    row = dialog.get_by_role("button", name="The charter").first
    row.click()
    expect(dialog.get_by_text("Only you may use it.")).to_be_visible()
    expect(dialog.get_by_role("heading", name="Versions")).to_have_count(0)
    text = dialog.get_by_label("Text", exact=True)
    expect(text).to_have_value(re.compile("two masts"))
    text.fill("The ship sank.")
    dialog.get_by_role("button", name="Save").press("Enter")
    expect(row).to_contain_text("version 2")
    expect(dialog.get_by_role("region", name="Documents")).to_be_focused()

    row.click()
    expect(text).to_have_value("The ship sank.")
    first = dialog.get_by_role("button", name="Version 1")
    told = rf"\d:\d\d.*by {re.escape(email)}\s+·\s+\d+ tokens"
    expect(first).to_contain_text(re.compile(told, re.DOTALL))
    expect(dialog.get_by_role("button", name="Version 2")).to_have_count(0)
    first.click()
    old = dialog.get_by_role("group", name="Version 1")
    expect(old.get_by_label("Text", exact=True)).to_have_value(re.compile("two masts"))
    expect(old.get_by_label("Text", exact=True)).not_to_be_editable()
    expect_faultless(page, "versions")
    old.get_by_role("button", name="Take up again").click()
    expect(row).to_contain_text("version 3")

    row.click()
    expect(text).to_have_value(re.compile("two masts"))


def remove(page: Page, name: str) -> None:
    page.get_by_role("button", name=f"More about “{name}”").click()
    page.get_by_role("menuitem", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()


def test_a_key_is_shown_once_and_opens_nothing_when_it_is_revoked(page: Page, server: Server):
    dialog = settings(page, "API keys")
    dialog.get_by_role("button", name="New key").click()
    dialog.get_by_label("What it is for").fill("Notebook")
    dialog.get_by_label("How long it lasts").select_option("week")
    expect(dialog.get_by_label("See figures")).to_have_count(0)
    dialog.get_by_role("button", name="Make the key").click()
    key = dialog.get_by_label("Your new key").input_value()

    def models() -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{server.url}/v1/models", headers=headers, timeout=60).status_code

    assert models() == 200
    dialog.get_by_role("button", name="Done").click()
    expect(dialog.get_by_label("Your new key")).to_have_count(0)
    expect(dialog).to_contain_text(key[:8])
    assert key not in page.content()
    dialog.get_by_role("button", name="Revoke Notebook").click()
    page.get_by_role("button", name="Revoke", exact=True).last.click()
    expect(dialog.get_by_text("There are no keys.")).to_be_visible()
    assert models() == 401


def test_a_new_password_ends_the_other_logins(
    page: Page, chromium: Browser, server: Server, email: str
):
    with signed_in(chromium, server, email) as elsewhere:
        dialog = settings(page, "Logins")
        expect(dialog.get_by_role("listitem")).to_have_count(2)
        settings(page, "Account")
        dialog.get_by_label("Current password").fill("a wrong one")
        dialog.get_by_label("New password").fill("another quiet word")
        dialog.get_by_role("button", name="Change the password").click()
        expect(dialog.get_by_role("alert")).to_have_text("The password is wrong.")
        dialog.get_by_label("Current password").fill(PASSWORD)
        dialog.get_by_role("button", name="Change the password").click()
        expect(dialog.get_by_text("The password is changed")).to_be_visible()

        expect(elsewhere.get_by_text("Your login has ended.")).to_be_visible()
        settings(page, "Logins")
        expect(dialog.get_by_role("listitem")).to_have_count(1)
        expect(dialog.get_by_text("You are signed in here only.")).to_be_visible()


def test_an_account_is_renamed_and_left_for_good(page: Page, email: str):
    dialog = settings(page, "Account")
    dialog.get_by_label("Name").fill("Ada Lovelace")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(".person")).to_contain_text("Ada Lovelace")

    dialog.get_by_role("button", name="Remove the account").click()
    sure = page.get_by_role("dialog", name="Remove your account?")
    sure.get_by_label("Password").fill(PASSWORD)
    sure.get_by_role("button", name="Remove the account").click()
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()


def test_how_the_page_looks_and_speaks_is_kept(page: Page):
    dialog = settings(page, "General")
    dialog.get_by_label("Dark").check()
    dialog.get_by_label("Prepare while I type").check()
    assert ink(page) == "rgb(240, 231, 222)"
    dialog.get_by_label("Language").select_option("de")

    page.get_by_role("button", name="Einstellungen", exact=True).click()
    dialog = page.get_by_role("dialog", name="Einstellungen")
    expect(dialog.get_by_label("Dunkel")).to_be_checked()
    expect(dialog.get_by_label("Beim Tippen vorbereiten")).to_be_checked()
    assert ink(page) == "rgb(240, 231, 222)"
    dialog.get_by_role("button", name="Verbrauch").click()
    expect(dialog.get_by_text("Anfragen heute")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "de"


def ink(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.documentElement).color")
    return colour


def test_who_is_invited_comes_in_by_the_link_on_the_page(chromium: Browser, server: Server):
    with boss_of(server) as boss:
        made = boss.post("/api/invitations", json={"note": "Ada"}).json()
    link, address = f"{server.url}/setup#token={made['token']}", f"{new_user_id()}@example.org"
    with contextlib.closing(chromium.new_context(locale="en-US")) as context:
        page = context.new_page()
        page.goto(link)
        expect(page.get_by_role("heading", name="Welcome to Keepwarm")).to_be_visible()
        assert made["token"] not in page.url
        expect_faultless(page, "setup")
        accept(page, address, PASSWORD)
        page.get_by_label("Message", exact=True).wait_for()
        expect(page.locator(".person")).to_contain_text("Ada")

        page.goto(server.url)
        page.goto(link)
        accept(page, f"another.{address}", PASSWORD)
        expect(page.get_by_role("alert")).to_contain_text("was used or revoked")


def test_on_a_phone_the_settings_take_the_place_of_the_list(page: Page):
    page.set_viewport_size({"width": 375, "height": 720})
    menu = page.get_by_role("button", name="Open the list of conversations")
    menu.click()
    dialog = settings(page, "Usage")
    expect(dialog.get_by_text("Tokens today")).to_be_in_viewport()
    expect(dialog.get_by_role("button", name="Usage", exact=True)).to_be_in_viewport()

    close(page)

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(menu).to_be_focused()


def test_the_settings_have_no_accessibility_faults(page: Page, tmp_path: Path):
    make_persona(page, "Mate")
    upload(page, tmp_path / "charter.html")
    sections = ["General", "Personas", "Documents", "Account", "Logins", "API keys", "Usage"]

    for section in sections:
        dialog = settings(page, section)
        expect(dialog.get_by_text("Loading…")).to_have_count(0)
        if section == "Personas":
            dialog.get_by_role("button", name="Mate").first.click()
            dialog.get_by_label("Instructions").wait_for()
        if section == "API keys":
            dialog.get_by_role("button", name="New key").click()
        expect_faultless(page, section)
    close(page)
    page.get_by_role("button", name="Begin with").click()
    page.get_by_role("radio", name="Mate").wait_for()
    expect_faultless(page, "Begin with")


def expect_faultless(page: Page, where: str) -> None:
    """Each theme once, in one of the widths; nothing is wider than its place."""
    for width, scheme in zip((1100, 320), SCHEMES, strict=True):
        page.set_viewport_size({"width": width, "height": 700})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

        assert (where, scheme, axe_faults(page)) == (where, scheme, [])
        widths = "[...document.querySelectorAll('html, dialog, dialog section')]"
        spill = f"{widths}.filter(one => one.scrollWidth > one.clientWidth + 1).length"
        assert (where, page.evaluate(spill)) == (where, 0)
    page.set_viewport_size({"width": 1100, "height": 700})
