"""Keeps the tables of settings in step with `app.settings`. `make golden` rewrites them."""

import re
from pathlib import Path

from app.settings import settings_markdown

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "settings.md")


def render(page: str) -> str:
    """The page with the table between its two marks written anew."""
    table = f"<!-- settings -->\n{settings_markdown()}<!-- /settings -->"
    return re.sub(r"<!-- settings -->.*<!-- /settings -->", lambda _: table, page, flags=re.DOTALL)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(render(path.read_text()))
