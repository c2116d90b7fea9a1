"""Keeps docs/rows.md in step: under each row, the tests that hold it. `make golden` rewrites.

A test names its rows by the mark `row`. Whether it runs on both databases, and over connections to a
server, is read from what it asks for: a fixture that has both as its parameters, or that starts or
gives a server, or one that is made of such a fixture.
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
ENGINE = "engine "
"""How the name of a row begins that the engine's own parts hold, without a server."""
STARTS = {"serving", "start_server", "fork_server", "serve"}
GIVES = {"Server", "Serving"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Test(msgspec.Struct, frozen=True, kw_only=True):
    """`rows` are the names that it is marked with."""

    name: str
    file: str
    rows: tuple[str, ...]
    on_both: bool
    is_connected: bool


class Fixtures(msgspec.Struct, frozen=True, kw_only=True):
    """The names of those that come twice, once on each database, and of those with a server."""

    twice: frozenset[str] = frozenset()
    connected: frozenset[str] = frozenset()


def tests() -> list[Test]:
    """All tests that are marked with a row."""
    found = []
    shared = {"tests": _fixtures(ROOT / "tests" / "conftest.py", Fixtures())}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.parent / "conftest.py"
        known = shared["tests"]
        if folder.exists():
            known = shared.setdefault(str(folder), _fixtures(folder, known))
        known = _fixtures(path, known)
        found += list(_marked(path, known))
    return found


def _functions(path: Path) -> list[Function]:
    return [one for one in ast.parse(path.read_text()).body if isinstance(one, Function)]


def _fixtures(path: Path, known: Fixtures) -> Fixtures:
    """Those of a file too; `known` are those above it, of which it may have its own."""
    for function in _functions(path):
        marks = [ast.unparse(mark) for mark in function.decorator_list]
        if not any("fixture" in mark for mark in marks):
            continue
        comes_twice = any("BOTH" in mark for mark in marks) or bool(known.twice & _asked(function))
        gives = _names(function.returns) & GIVES
        is_connected = bool(gives) or _is_connected(function, known)
        known = Fixtures(
            twice=_with(known.twice, function.name, there=comes_twice),
            connected=_with(known.connected, function.name, there=is_connected),
        )
    return known


def _with(names: frozenset[str], name: str, *, there: bool) -> frozenset[str]:
    return names | {name} if there else names - {name}


def _is_connected(function: Function, known: Fixtures) -> bool:
    """It asks for a server, or starts one."""
    calls = {ast.unparse(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)}
    return bool(known.connected & _asked(function) or calls & STARTS)


def _names(annotation: ast.expr | None) -> set[str]:
    found = () if annotation is None else ast.walk(annotation)
    return {one.id for one in found if isinstance(one, ast.Name)}


def _asked(function: Function) -> set[str]:
    return {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}


def _marked(path: Path, known: Fixtures) -> Iterator[Test]:
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
                on_both=bool(known.twice & _asked(function)),
                is_connected=_is_connected(function, known),
            )


def rows(page: str) -> dict[str, str]:
    """The rows of the page and what each says."""
    return {found["name"]: found["words"] for found in HEADING.finditer(page)}


def render(page: str) -> str:
    """The page with each row's list of tests written anew; its words stay as they are."""
    marked = tests()

    def section(match: re.Match[str]) -> str:
        names = [one for one in marked if match["name"] in one.rows]
        listed = "".join(f"- `{one.name}`{_where(one)}\n" for one in names)
        return f"{match['head']}\n{listed or 'No test yet.' + chr(10)}\n"

    pattern = (
        r"(?P<head>### (?P<name>[^:\n]+): [^\n]*\n\n(?:[^\n]+\n)+)\n"
        r"(?:- `[^\n]*\n|No test yet\.\n)*\n?"
    )
    # The last row ends as the others do.
    return re.sub(pattern, section, page.rstrip("\n") + "\n\n").rstrip("\n") + "\n"


def _where(test: Test) -> str:
    connected = ", over connections" if test.is_connected else ""
    return connected + (", on both databases" if test.on_both else "")


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
