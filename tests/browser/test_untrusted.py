"""What others wrote, in the real page in Chromium: nothing of it runs, and nothing leaves.

Also how somebody comes in who left the page for a provider of single sign-on, whose cookies only a real
browser treats as browsers do.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from app.db.types import AccountRole
from tests.kit.echo import FIRST_CHARACTER
from tests.kit.peers import open_engine
from tests.kit.provider import RealProvider
from tests.kit.serving import Serving, serving
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

ADMIN, READER = "root@example.org", "reader@example.org"
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


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    """Known to the server before it is started."""
    claims = {"email": "ada@example.org", "email_verified": True, "name": "Ada"}
    provider = RealProvider({"ada": claims, "ben": {"email": "ben@example.org"}})
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, provider: RealProvider) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("untrusted")
    settings = provider.settings | {"oidc_name": "the House"}
    with serving(folder, open_engine, **settings) as server:
        provider.start(f"{server.site.url}/api/oidc/callback")
        for email, role in ((ADMIN, AccountRole.ADMIN), (READER, AccountRole.MEMBER)):
            server.do(server.service.accounts.create_user(email, "Somebody", PASSWORD, role))
        yield server


class Watch:
    """What a page must not do: complain, ask somebody else, open something, run what it shows."""

    def __init__(self, context: BrowserContext, house: Serving) -> None:
        self.context = context
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.home = house.site.url
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


@pytest.fixture
def watch(chromium: Browser, house: Serving) -> Iterator[Watch]:
    with contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(30_000)
        yield Watch(context, house)


def sign_in(page: Page, house: Serving) -> None:
    page.goto(house.site.url)
    page.get_by_label("Email").fill(READER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_label("Message", exact=True).wait_for()


def sign_in_there(page: Page, login: str) -> None:
    """At the provider's own pages."""
    page.get_by_placeholder("Enter any login").fill(login)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def archive() -> str:
    """A conversation in which both sides say every payload, under a title and a persona of them."""
    messages: list[dict[str, object]] = []
    for number, payload in enumerate(PAYLOADS):
        for role in ("user", "assistant"):
            parent = messages[-1]["id"] if messages else None
            made = {"id": f"{role}-{number}", "parent_id": parent, "role": role, "text": payload}
            messages.append(made | {"created_at": 1.0})
    conversation = {
        "id": "conv_1",
        "title": PAYLOADS[1],
        "reads": [{"id": "persona_1", "number": 1, "name": PAYLOADS[0], "text": PAYLOADS[1]}],
        "leaf_id": messages[-1]["id"],
        "created_at": 1.0,
        "updated_at": 1.0,
        "messages": messages,
    }
    return json.dumps(
        {"format": "keepwarm.conversations", "version": 1, "conversations": [conversation]}
    )


SHOWN = """() => {
  const seen = [...document.querySelectorAll(".prose *, .question *, nav *")];
  const tags = new Set(seen.map((node) => node.tagName));
  const names = seen.flatMap((node) => node.getAttributeNames());
  const hrefs = [...document.querySelectorAll(".prose a[href]")].map((link) => link.href);
  return {
    ran: window.ran ?? null,
    tags: ["SCRIPT", "IMG", "IFRAME", "STYLE", "OBJECT", "FORM", "INPUT"].filter((tag) => tags.has(tag)),
    handlers: names.filter((name) => name.startsWith("on") || name === "style" || name === "srcdoc"),
    schemes: [...new Set(hrefs.map((href) => new URL(href).protocol))],
    unmarked: [...document.querySelectorAll(".prose a[href]")].filter(
      (link) => link.rel !== "noopener noreferrer nofollow").length,
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
    assert (shown["tags"], shown["handlers"], shown["unmarked"]) == ([], [], 0)
    assert set(shown["schemes"]) <= {"http:", "https:", "mailto:"}
    assert [one for one in watch.complaints if "401" not in one] == []
    assert watch.elsewhere == []


@pytest.mark.row("markdown XSS", "also untrusted", "CVE-2026-44568")
def test_nothing_that_was_brought_in_runs_loads_or_leaves(watch: Watch, house: Serving):
    page = watch.context.new_page()
    sign_in(page, house)
    imported = page.evaluate(
        """async (file) => {
          const token = document.cookie.split("kw_csrf=")[1].split(";")[0];
          const headers = { "x-csrf-token": token, "content-type": "application/json" };
          const answer = await fetch("/api/import", { method: "POST", headers, body: file });
          return [answer.status, await answer.json()];
        }""",
        archive(),
    )
    assert imported[0] in (200, 201), imported

    page.reload()
    page.get_by_role("link", name=PAYLOADS[1]).click()
    page.wait_for_function(ALL_DRAWN, arg=len(PAYLOADS))
    page.locator(".answer .prose").last.hover()
    page.locator(".prose code span").first.wait_for()

    expect_harmless(page, watch)


@pytest.mark.row("markdown XSS", "CVE-2026-44568")
def test_nothing_that_an_answer_grows_through_runs_loads_or_leaves(
    watch: Watch, house: Serving, monkeypatch: pytest.MonkeyPatch
):
    text = "\n\n".join(PAYLOADS)
    monkeypatch.setattr(
        "tests.kit.echo.reply_ids", lambda *_: tuple(FIRST_CHARACTER + ord(one) for one in text)
    )
    page = watch.context.new_page()
    sign_in(page, house)

    field = page.get_by_label("Message", exact=True)
    field.fill(PAYLOADS[1])
    field.press("Enter")
    expect(page.locator(".receipt")).to_have_count(1, timeout=60_000)

    expect_harmless(page, watch)


@pytest.mark.row("markdown XSS")
def test_text_becomes_html_by_the_pages_own_templates_and_sanitiser_only(
    watch: Watch, house: Serving
):
    page = watch.context.new_page()
    sign_in(page, house)

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
    root = house.do(service.accounts.find(ADMIN))
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
