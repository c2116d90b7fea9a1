"""A real Chromium."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(
    timeout=30_000
)  # what comes at once on an idle machine takes a while on a busy one


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "Chromium is not installed: make chromium"
    # Chromium's sandbox does not start as root, which is what containers run as.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    # Debian's asks for a GPU, which a processor would then stand in for.
    arguments = ["--disable-gpu", *sandbox]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
