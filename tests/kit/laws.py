"""Keeps docs/laws.md in step: under each law, the tests that hold it. `make golden` rewrites."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "laws.md"


def tests_by_law() -> dict[int, list[str]]:
    """Law number to the names of its tests, found by their `test_NN_` prefix."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, law in re.findall(r"def (test_(\d\d)_\w+)", path.read_text()):
            found.setdefault(int(law), []).append(name)
    return found


def long_tests() -> set[str]:
    """The names of those that `make test` leaves out with all their parameters."""
    return {
        function.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if "pytest.mark.long" in map(ast.unparse, function.decorator_list)
    }


def render(page: str) -> str:
    """The page with each law's list of tests written anew; its words stay as they are."""
    tests = tests_by_law()

    def section(match: re.Match[str]) -> str:
        names = tests.get(int(match["law"]), [])
        listed = "".join(f"- `{name}`\n" for name in names)
        return match["head"] + (f"\n{listed}" if listed else "\nNo test yet.\n") + "\n"

    # A law's own words end at the blank line before its list.
    pattern = (
        r"(?P<head>## (?P<law>\d+)\. [^\n]*\n\n(?:[^\n]+\n)+)\n(?:- `[^\n]*\n|No test yet\.\n)*\n?"
    )
    return re.sub(pattern, section, page).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
