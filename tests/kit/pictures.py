"""Takes the pictures of the pages that README and docs show, from a real server with the real model.

`make pictures`. What the model says is drawn anew each time; look at them before they are kept.
"""

import contextlib
from collections.abc import Iterator
from typing import Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.kit.chromium import launched
from tests.kit.server import ROOT, Server, start_server

DOCS = ROOT / "docs"
SAID = (
    ("Name three rivers of Europe.", "Which of them is the longest?"),
    ("Write a short letter to a lighthouse keeper.",),
    ("How long do I boil an egg?", "And on a high mountain?", "Thank you!"),
)
ANSWER_MS = 120_000
WIDE, PHONE = (1200, 820), (390, 820)
Scheme = Literal["light", "dark"]


@contextlib.contextmanager
def opened(
    browser: Browser, server: Server, size: tuple[int, int], scheme: Scheme
) -> Iterator[Page]:
    """The chat page of somebody who has signed in."""
    width, height = size
    with contextlib.closing(
        browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    ) as context:
        context.set_default_timeout(ANSWER_MS)
        page = context.new_page()
        page.goto(server.url)
        page.get_by_label("Email").fill(server.admin_email)
        page.get_by_label("Password").fill(server.admin_password)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Message", exact=True).wait_for()
        yield page


def talk(page: Page) -> None:
    """Conversations for the list, the last of them open."""
    for said in SAID:
        page.get_by_role("button", name="New conversation", exact=True).click()
        for number, text in enumerate(said, 1):
            page.get_by_label("Message", exact=True).fill(text)
            page.keyboard.press("Enter")
            expect(page.locator(".receipt")).to_have_count(number, timeout=ANSWER_MS)


def take(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.screenshot(path=DOCS / f"{name}.png", animations="disabled")


def main() -> None:
    with start_server(KEEPWARM_TITLES="1") as server, sync_playwright() as playwright:
        browser = launched(playwright)
        with opened(browser, server, WIDE, "light") as page:
            talk(page)
            take(page, "page")
            page.get_by_role("button", name="Settings", exact=True).click()
            page.get_by_role("dialog").wait_for()
            take(page, "settings")
        with opened(browser, server, PHONE, "dark") as page:
            page.goto(f"{server.url}/{last_conversation(page)}")
            page.reload()
            page.locator(".receipt").last.wait_for()
            take(page, "phone")
        with opened(browser, server, WIDE, "light") as page:
            page.goto(f"{server.url}/admin")
            page.get_by_role("heading", name="What the cache saved").wait_for()
            take(page, "admin")
        browser.close()


def last_conversation(page: Page) -> str:
    found: str = page.evaluate(
        "() => fetch('/api/conversations').then(a => a.json()).then(p => p.items[0].id)"
    )
    return f"#{found}"


if __name__ == "__main__":
    main()
