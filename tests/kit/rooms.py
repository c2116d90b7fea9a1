"""Keeps the list of files in docs/house.md in step: each module's own first sentence.

`make golden` rewrites it.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "house.md"


def first_sentence(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(said.split("\n\n")[0].split()).rstrip(".")


def render(page: str) -> str:
    """The page with the list between its two marks written anew."""
    modules = [
        path
        for top in ("engine", "app")
        for path in sorted((ROOT / top).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    rows = [f"| `{path.relative_to(ROOT)}` | {first_sentence(path)} |\n" for path in modules]
    listed = "<!-- rooms -->\n| file | what it owns |\n|---|---|\n" + "".join(rows)
    return re.sub(
        r"<!-- rooms -->.*<!-- /rooms -->",
        lambda _: listed + "<!-- /rooms -->",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
