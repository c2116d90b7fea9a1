"""A real Chromium."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.kit.chromium import launched

expect.set_options(
    timeout=30_000
)  # what comes at once on an idle machine takes a while on a busy one


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()
