"""What others wrote, in the real page in Chromium: nothing of it runs, and nothing leaves.

On the real model, which a grammar makes say some of it; all of it comes from an engine that says what it
is told to, a character after another. Also how somebody comes in who left the page for a
provider of single sign-on, whose cookies only a real browser treats as browsers do.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

from app.chat.asked import AnswerFormat
from app.chat.entry import TurnRequest
from app.db.types import AccountRole
from app.ids import new_user_id
from app.routes import conversations
from engine.api import Engine, JobClass, Limits
from engine.model.grammar import Grammars
from tests.browser.test_admin_page import PAGES
from tests.browser.test_chat import ANSWER_MS, send, stored
from tests.browser.test_settings import close, settings
from tests.kit.db import BOTH
from tests.kit.engines import as_served, opened
from tests.kit.peers import engine_of
from tests.kit.provider import RealProvider
from tests.kit.serving import Serving, serving
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

RUN = "window.ran=1"
AWAY = "https://evil.example"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src='{AWAY}/pixel?'>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><a xlink:href='javascript:{RUN}'><text y=20>a</text></a></svg>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--><img src=x onerror={RUN}>'>",
    f"<form><math><mtext></form><form><mglyph><svg><mtext><style><path id='</style><img onerror={RUN} src>'>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src='{AWAY}'></iframe>",
    f"<object data='{AWAY}/a.swf'></object><embed src='{AWAY}/a'>",
    f"<style>@import '{AWAY}/a.css'; body {{ background: url({AWAY}/b) }}</style>",
    f"<link rel=stylesheet href='{AWAY}/a.css'>",
    f"<meta http-equiv=refresh content='0;url={AWAY}'>",
    f"<base href='{AWAY}/'>",
    f"<details open ontoggle={RUN}>",
    f"<video autoplay onloadstart={RUN}><source src='{AWAY}/v'></video>",
    f"<body onload={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<div style='background:url({AWAY}/c)' onmouseover={RUN}>over</div>",
    f"<form action='javascript:{RUN}'><button>go</button></form>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<template><img src=x onerror={RUN}></template>",
    f"[a](javascript:{RUN})",
    f"[a](  JaVaScRiPt:{RUN})",
    f"[a](java&#10;script:{RUN})",
    f"[a](javascript&colon;{RUN})",
    f"[a](\x01javascript:{RUN})",
    f"[a](vbscript:{RUN})",
    f"[a](data:text/html,<script>{RUN}</script>)",
    f"[a](<javascript:{RUN}>)",
    f"[a][r]\n\n[r]: javascript:{RUN}",
    f"<javascript:{RUN}>",
    f'[a](https://example.org/"onmouseover="{RUN})',
    f"[a](https://example.org 'x\" onmouseover={RUN} y=\"')",
    f"![a](javascript:{RUN})",
    f"![a]({AWAY}/pixel.png)",
    f'![a" onerror="{RUN}](x)',
    f"![a][i]\n\n[i]: {AWAY}/i.png 'x\" onerror={RUN}'",
    f"```html\n<img src=x onerror={RUN}>\n```",
    f'```"><img src=x onerror={RUN}>\nx\n```',
    f"```xml\n<a b='</code></pre><img src=x onerror={RUN}>'>\n```",
    f"`<img src=x onerror={RUN}>`",
    f"| <img src=x onerror={RUN}> | b |\n|--|--|\n| [a](javascript:{RUN}) | ![a]({AWAY}/t) |",
    f"- [ ] <img src=x onerror={RUN}>",
    f"# <img src=x onerror={RUN}>\n\n> <svg onload={RUN}>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<<script>{RUN}//<</script>",
    f"&lt;img src=x onerror={RUN}&gt;",
    f'<a href="javascript:{RUN}">a</a>',
    f"<!-- --!><img src=x onerror={RUN}>-->",
    f"<![CDATA[<img src=x onerror={RUN}>]]>",
    f"<?xml version='1.0'?><img src=x onerror={RUN}>",
    f"$\\href{{javascript:{RUN}}}{{a}}$",
    "<form id=body><input name=firstChild><img name=getElementById>",
    "<a id=location href=https://example.org>a</a>",
)


SCRIPT, IMAGE, PIXEL = PAYLOADS[:3]
ALL = "\n\n".join(PAYLOADS)
FEW = "\n\n".join(PAYLOADS[:3])
"""What the model reads in a moment, on a busy machine too."""


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    """Known to the server before it is started."""
    claims = {"email": "ada@example.org", "email_verified": True, "name": "Ada"}
    provider = RealProvider({"ada": claims, "ben": {"email": "ben@example.org"}})
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, provider: RealProvider) -> Iterator[Serving]:
    async def open_engine() -> Engine:
        return await opened(as_served(checks=False, poison=False))

    folder: Path = tmp_path_factory.mktemp("untrusted")
    settings = provider.settings | {"oidc_name": "the House"}
    with serving(folder, open_engine, **settings) as server:
        provider.start(f"{server.site.url}/api/oidc/callback")
        yield server


@pytest.fixture(params=BOTH)
def told_house(request: pytest.FixtureRequest) -> Serving:
    """On each of the databases, with an engine that says what it is told to."""
    found: Serving = request.getfixturevalue(f"{request.param}_house")
    return found


class Watch:
    """What a page must not do: complain, ask somebody else, open something, run what it shows."""

    def __init__(self, context: BrowserContext, home: str) -> None:
        self.context = context
        self.home = home
        self.asked: list[str] = []
        self.complaints: list[str] = []
        context.on("request", lambda request: self.asked.append(request.url))
        context.on("page", self._watch)

    def _watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("console", self._heard)

    def _heard(self, said: ConsoleMessage) -> None:
        if said.location["url"].startswith(self.home):  # the provider's own pages may complain
            self.complaints.append(said.text)

    @property
    def elsewhere(self) -> list[str]:
        own = (self.home, self.home.replace("http", "ws", 1), "data:")
        return [url for url in self.asked if not url.startswith(own)]


@contextlib.contextmanager
def watching(chromium: Browser, house: Serving) -> Iterator[Watch]:
    with contextlib.closing(chromium.new_context(locale="en-US")) as context:
        context.set_default_timeout(30_000)
        yield Watch(context, house.site.url)


@pytest.fixture
def watch(chromium: Browser, house: Serving) -> Iterator[Watch]:
    with watching(chromium, house) as watch:
        yield watch


def newcomer(house: Serving, role: AccountRole = AccountRole.MEMBER) -> str:
    """Somebody who is called like a payload; the address."""
    email = f"{new_user_id()}@example.org"
    house.do(house.service.accounts.create_user(email, IMAGE, PASSWORD, role))
    return email


def signed_in(watch: Watch, house: Serving, role: AccountRole = AccountRole.MEMBER) -> Page:
    page = watch.context.new_page()
    page.goto(house.site.url)
    page.get_by_label("Email").fill(newcomer(house, role))
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_label("Message", exact=True).wait_for()
    return page


def sign_in_there(page: Page, login: str) -> None:
    """At the provider's own pages."""
    page.get_by_placeholder("Enter any login").fill(login)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def post(page: Page, path: str, told: object) -> Any:
    """As the page itself does it."""
    return page.evaluate(
        """async ([path, told]) => {
          const token = document.cookie.split("kw_csrf=")[1].split(";")[0];
          const headers = { "x-csrf-token": token, "content-type": "application/json" };
          const asked = { method: "POST", headers, body: JSON.stringify(told) };
          const answer = await fetch(path, asked);
          if (!answer.ok) throw new Error(await answer.text());
          return answer.json();
        }""",
        [path, told],
    )


def have_it_say(patch: pytest.MonkeyPatch, text: str) -> None:
    """Whoever asks on the page is answered this: the model may draw no token that leads elsewhere."""
    plain = conversations._saying

    def saying(request: TurnRequest, said: str) -> TurnRequest:
        return msgspec.structs.replace(plain(request, said), format=AnswerFormat())

    def matcher(grammars: Grammars, _: object) -> LLMatcher:
        return LLMatcher(grammars._tokens(), f"start: {json.dumps(text)}")

    patch.setattr(conversations, "_saying", saying)
    patch.setattr(Grammars, "_matcher", matcher)


def archive() -> dict[str, Any]:
    """A conversation in which both sides say every payload, under a title and a persona of them."""
    messages: list[dict[str, object]] = []
    for number, payload in enumerate(PAYLOADS):
        for role in ("user", "assistant"):
            parent = messages[-1]["id"] if messages else None
            made = {"id": f"{role}-{number}", "parent_id": parent, "role": role, "text": payload}
            messages.append(made | {"created_at": 1.0})
    conversation = {
        "id": "conv_1",
        "title": IMAGE,
        "reads": [{"id": "persona_1", "number": 1, "name": SCRIPT, "text": IMAGE}],
        "leaf_id": messages[-1]["id"],
        "created_at": 1.0,
        "updated_at": 1.0,
        "messages": messages,
    }
    return {"format": "keepwarm.conversations", "version": 1, "conversations": [conversation]}


SHOWN = """() => {
  const tagsOf = (nodes) => new Set(nodes.map((node) => node.tagName));
  const all = [...document.body.querySelectorAll(":not(.brand img)")];
  const texts = [...document.querySelectorAll(".prose *, .question *, nav *")];
  const tags = {
    anywhere: ["SCRIPT", "IMG", "IFRAME", "STYLE", "OBJECT", "EMBED", "BASE", "LINK", "META", "VIDEO",
      "MATH", "TEMPLATE"].filter((tag) => tagsOf(all).has(tag)),
    inTexts: ["FORM", "INPUT"].filter((tag) => tagsOf(texts).has(tag)),
  };
  const names = all.flatMap((node) => node.getAttributeNames());
  const links = [...document.querySelectorAll(".prose a[href]")];
  return {
    ran: window.ran ?? null,
    tags: [...tags.anywhere, ...tags.inTexts],
    handlers: names.filter((name) => name.startsWith("on") || name === "srcdoc"),
    styled: texts.filter((node) => node.hasAttribute("style")).length,
    schemes: [...new Set(links.map((link) => new URL(link.href).protocol))],
    unmarked: links.filter((link) => link.rel !== "noopener noreferrer nofollow").length,
  };
}"""


ALL_DRAWN = """count => {
  document.querySelector("button.earlier")?.click();
  return document.querySelectorAll(".answer .prose").length >= count;
}"""
"""Looks for what was said before as often as it takes; the page does it by itself, too, and then the
button is gone between two looks."""


def expect_harmless(page: Page, watch: Watch) -> None:
    shown = page.evaluate(SHOWN)
    assert shown["ran"] is None
    assert (shown["tags"], shown["handlers"]) == ([], [])
    assert (shown["styled"], shown["unmarked"]) == (0, 0)
    assert set(shown["schemes"]) <= {"http:", "https:", "mailto:"}
    assert [one for one in watch.complaints if "401" not in one] == []
    assert watch.elsewhere == []


@pytest.mark.row("markdown XSS", "also untrusted", "CVE-2026-44568")
def test_nothing_that_was_brought_in_runs_loads_or_leaves(watch: Watch, house: Serving):
    page = signed_in(watch, house)
    post(page, "/api/import", archive())

    page.reload()
    page.get_by_role("link", name=IMAGE).click()
    page.wait_for_function(ALL_DRAWN, arg=len(PAYLOADS))
    page.locator(".answer .prose").last.hover()
    page.locator(".prose code span").first.wait_for()
    expect_harmless(page, watch)

    page.get_by_label("Search in all messages").fill("onerror")
    page.get_by_role("list", name="Found messages").locator("mark").first.wait_for()
    expect_harmless(page, watch)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find and do").fill("onerror")
    page.get_by_role("group", name="Messages").get_by_role("option").first.wait_for()
    expect_harmless(page, watch)


@pytest.mark.row("markdown XSS", "CVE-2026-44568")
def test_nothing_that_is_asked_or_answered_runs_loads_or_leaves(
    watch: Watch, house: Serving, monkeypatch: pytest.MonkeyPatch
):
    said = f"{IMAGE}\n\n[a](javascript:{RUN})"
    have_it_say(monkeypatch, said)
    page = signed_in(watch, house)

    send(page, FEW)
    expect(page.locator(".receipt")).to_have_count(1, timeout=ANSWER_MS)

    assert stored(page)["text"] == said
    expect(page.locator(".question p")).to_have_text(FEW)
    expect_harmless(page, watch)


@pytest.mark.row("markdown XSS", "CVE-2026-44568")
def test_nothing_that_an_answer_grows_through_runs_loads_or_leaves(
    chromium: Browser, told_house: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversations, "BROWSER_LIMITS", Limits(max_output_tokens=len(ALL) + 1))
    monkeypatch.setitem(engine_of(told_house).says, JobClass.INTERACTIVE, ALL)
    with watching(chromium, told_house) as watch:
        page = signed_in(watch, told_house)

        send(page, IMAGE)
        expect(page.locator(".receipt")).to_have_count(1, timeout=ANSWER_MS)

        assert stored(page)["text"] == ALL
        expect_harmless(page, watch)

        page.reload()  # now all of it is what the database gave back
        expect(page.locator(".question p")).to_have_text(IMAGE)
        expect(page.locator(".answer .prose")).to_have_count(1)
        expect_harmless(page, watch)


@pytest.mark.row("markdown XSS", "also untrusted")
def test_nothing_of_a_persona_or_a_document_runs_loads_or_leaves(
    watch: Watch, house: Serving, monkeypatch: pytest.MonkeyPatch
):
    have_it_say(monkeypatch, IMAGE)
    page = signed_in(watch, house)
    examples = [{"user": IMAGE, "assistant": SCRIPT}]
    persona = {"name": SCRIPT, "instructions": FEW, "examples": examples}
    made = post(page, "/api/personas", persona)["summary"]
    post(page, f"/api/personas/{made['id']}/versions", persona)
    post(page, "/api/documents", {"title": PIXEL, "text": FEW})
    page.reload()

    dialog = settings(page, "Personas")
    dialog.get_by_role("button", name=SCRIPT).first.click()
    expect(dialog.get_by_label("Instructions")).to_have_value(FEW)
    dialog.get_by_role("button", name="Version 1").click()
    dialog.get_by_role("group", name="Version 1").get_by_text(SCRIPT).wait_for()
    expect_harmless(page, watch)
    dialog = settings(page, "Documents")
    dialog.get_by_role("button", name=PIXEL).first.click()
    expect(dialog.get_by_label("Text", exact=True)).to_have_value(FEW)
    expect_harmless(page, watch)
    close(page)

    page.get_by_role("button", name="Begin with").click()
    dialog = page.get_by_role("dialog", name="Begin with")
    dialog.get_by_role("radio", name=SCRIPT).check()
    dialog.get_by_role("checkbox", name=PIXEL).check()
    expect_harmless(page, watch)
    dialog.get_by_role("button", name="Done").click()
    send(page, "Hello.")
    expect(page.locator(".receipt")).to_have_count(1, timeout=ANSWER_MS)
    expect(page.get_by_role("note", name="Began with")).to_contain_text(SCRIPT)
    expect_harmless(page, watch)


def visit(page: Page, name: str) -> Locator:
    """A section of the administrators' page, once it is there."""
    page.evaluate("name => { location.hash = name }", name)
    page.get_by_role("navigation").locator(f"a[href='#{name}'][aria-current]").first.wait_for()
    return page.get_by_role("main")


@pytest.mark.row("markdown XSS", "also untrusted")
def test_nothing_of_a_name_runs_loads_or_leaves_on_the_administrators_page(
    watch: Watch, house: Serving
):
    page = signed_in(watch, house, AccountRole.ADMIN)
    group = post(page, "/api/groups", {"name": f"{SCRIPT} {new_user_id()}"})
    invitation = {"note": PIXEL, "role": "member", "group_ids": [group["id"]]}
    post(page, "/api/invitations", invitation)
    post(page, "/api/keys", {"name": SCRIPT})
    published = {"name": PIXEL, "instructions": IMAGE, "visibility": "everybody"}
    post(page, "/api/personas", published)
    page.goto(f"{house.site.url}/admin")

    shown = {"people": IMAGE, "invitations": PIXEL, "groups": SCRIPT, "keys": SCRIPT}
    for name in PAGES:
        main = visit(page, name)
        if name in shown:
            main.get_by_text(shown[name]).first.wait_for()
        expect_harmless(page, watch)

    visit(page, "prefixes").get_by_text("As a table").click()
    page.get_by_role("row").filter(has_text=PIXEL).first.wait_for()
    expect_harmless(page, watch)
    visit(page, "keys").get_by_role("button", name="Revoke").first.click()
    page.get_by_role("dialog").get_by_text(SCRIPT).wait_for()
    expect_harmless(page, watch)


@pytest.mark.row("markdown XSS")
def test_text_becomes_html_by_the_pages_own_templates_and_sanitiser_only(
    watch: Watch, house: Serving
):
    page = signed_in(watch, house)

    attempts = (
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.createElement('div').innerHTML = '<b>x</b>'",
        "new DOMParser().parseFromString('<b>x</b>', 'text/html')",
        "window.trustedTypes.createPolicy('mine', { createHTML: (html) => html })",
        "document.createElement('script').text = '1'",
    )
    for attempt in attempts:
        tried = (
            f"() => {{ try {{ {attempt}; return 'done' }} catch (error) {{ return error.name }} }}"
        )
        assert page.evaluate(tried) == "TypeError", attempt


def test_who_left_for_the_provider_comes_back_signed_in(watch: Watch, house: Serving):
    service = house.service
    root = house.do(service.accounts.find(newcomer(house, AccountRole.ADMIN)))
    made = house.do(service.invitations.invite(root.id, "Ada", AccountRole.MEMBER))
    page = watch.context.new_page()
    page.goto(f"{house.site.url}/setup#token={made.token}")
    page.get_by_role("button", name="Continue with the House").click()
    sign_in_there(page, "ada")
    page.get_by_label("Message", exact=True).wait_for()

    page.reload()
    page.get_by_label("Message", exact=True).wait_for()
    cookies = {cookie["name"]: cookie["sameSite"] for cookie in watch.context.cookies(page.url)}

    assert cookies["kw_session"] == "Strict"
    assert "kw_errand" not in cookies
    assert [one for one in watch.complaints if "401" not in one] == []


def test_who_is_unknown_is_told_so_on_the_page(watch: Watch, house: Serving):
    page = watch.context.new_page()
    page.goto(house.site.url)
    page.get_by_role("button", name="Sign in with the House").click()
    sign_in_there(page, "ben")

    expect(page.get_by_role("alert")).to_contain_text("no account for you here yet")
    assert page.url == f"{house.site.url}/"
