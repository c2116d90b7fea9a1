"""Keeps docs/rows.md in step: under each row, the tests that hold it. `make golden` rewrites.

A test names its rows by the mark `row`. Whether it runs on both databases is read from what it asks
for: a fixture that has both as its parameters, or one that is made of such a fixture.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "rows.md"
HEADING = re.compile(r"^### (?P<name>[^:\n]+): [^\n]+\n\n(?P<words>(?:[^\n]+\n)+)", re.MULTILINE)
ALONE = "No table is touched."
"""What a row says of itself that one database is enough for."""


class Test(msgspec.Struct, frozen=True, kw_only=True):
    """`rows` are the names that it is marked with."""

    name: str
    file: str
    rows: tuple[str, ...]
    on_both: bool


def tests() -> list[Test]:
    """All tests that are marked with a row."""
    found = []
    shared = {"tests": _fixtures(ROOT / "tests" / "conftest.py", set())}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.parent / "conftest.py"
        known = shared["tests"]
        if folder.exists():
            known = shared.setdefault(str(folder), _fixtures(folder, known))
        known = _fixtures(path, known)
        found += list(_marked(path, known))
    return found


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    body = ast.parse(path.read_text()).body
    return [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def _fixtures(path: Path, known: set[str]) -> set[str]:
    """The fixtures of a file that come twice, once on each database; `known` are those above it."""
    made = known
    for function in _functions(path):
        marks = [ast.unparse(mark) for mark in function.decorator_list]
        if not any("fixture" in mark for mark in marks):
            continue
        comes_twice = any("BOTH" in mark for mark in marks) or made & _asked(function)
        made = made | {function.name} if comes_twice else made - {function.name}
    return made


def _asked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}


def _marked(path: Path, known: set[str]) -> Iterator[Test]:
    for function in _functions(path):
        rows = [
            str(ast.literal_eval(name))
            for mark in function.decorator_list
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.row"
            for name in mark.args
        ]
        if rows:
            yield Test(
                name=function.name,
                file=str(path.relative_to(ROOT)),
                rows=tuple(rows),
                on_both=bool(known & _asked(function)),
            )


def rows(page: str) -> dict[str, str]:
    """The rows of the page and what each says."""
    return {found["name"]: found["words"] for found in HEADING.finditer(page)}


def render(page: str) -> str:
    """The page with each row's list of tests written anew; its words stay as they are."""
    marked = tests()

    def section(match: re.Match[str]) -> str:
        names = [one for one in marked if match["name"] in one.rows]
        listed = "".join(
            f"- `{one.name}`{', on both databases' if one.on_both else ''}\n" for one in names
        )
        return f"{match['head']}\n{listed or 'No test yet.' + chr(10)}\n"

    pattern = (
        r"(?P<head>### (?P<name>[^:\n]+): [^\n]*\n\n(?:[^\n]+\n)+)\n"
        r"(?:- `[^\n]*\n|No test yet\.\n)*\n?"
    )
    # The last row ends as the others do.
    return re.sub(pattern, section, page.rstrip("\n") + "\n\n").rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
