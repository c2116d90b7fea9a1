"""A real Chromium, without a window."""

import os
import shutil

from playwright.sync_api import Browser, Playwright

# The shell has no windows at all; the browser without one still draws the frame of each, by a process of
# its own.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")


def launched(playwright: Playwright) -> Browser:
    """For who closes it."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "Chromium is not installed: make chromium"
    # Chromium's sandbox does not start as root, which is what containers run as.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    # Debian's asks for a GPU, which a processor would then stand in for.
    arguments = ["--disable-gpu", *sandbox]
    return playwright.chromium.launch(executable_path=program, args=arguments)
