"""The house rules that a linter does not know: what may stand where, and docs that keep in step."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import laws, metrics, protocol, rooms, rows

ROOT = Path(__file__).parent.parent
TOP = {
    *("pyproject.toml", "alembic.ini", "Makefile", "README.md", "LICENSE"),
    *("app", "engine", "migrations", "web", "tests", "benchmarks", "docs"),
}
SOURCES = [path for top in ("app", "engine") for path in sorted((ROOT / top).rglob("*.py"))]
LAWS = range(1, 20)
STRUCTS = {"engine/api.py", "app/frames.py", "app/routes/openai/schema.py"}
"""Pages of declarations: long is fine where nothing happens."""


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    return listed.stdout.decode().splitlines()


def test_the_top_level_holds_only_what_the_design_names():
    top = {name.split("/")[0] for name in tracked()}

    assert {name for name in top if not name.startswith(".")} <= TOP


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_owns(path: Path):
    source = path.read_text()
    if path.name == "__init__.py":
        assert source == "", "a package marker re-exports nothing"
    else:
        assert ast.get_docstring(ast.parse(source))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_readable_in_one_sitting(path: Path):
    limit = 550 if str(path.relative_to(ROOT)) in STRUCTS else 400

    assert len(path.read_text().splitlines()) <= limit


def test_only_settings_know_the_environment():
    readers = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if re.search(r"\b(os\.environ|getenv|environb)\b", path.read_text())
    }

    # The last only writes: what it says to Gloo and NCCL can be said in no other way.
    assert readers <= {"app/settings.py", "app/console.py", "engine/model/ranks.py"}


def test_migrations_import_nothing_that_changes():
    for path in (ROOT / "migrations" / "versions").glob("*.py"):
        assert not re.search(r"^\s*(from|import) (app|engine)\b", path.read_text(), re.MULTILINE)


def test_the_app_loads_without_torch():
    script = "import sys, app.asgi, engine.connect; sys.exit('torch' in sys.modules)"

    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_no_test_waits_by_sleeping():
    # But for a crowd under harm, whose pauses are drawn: nothing is waited for in them.
    naps = re.compile(r"\b(time|asyncio)\.sleep\((?!(0|POLL_S)\))")
    sleepers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__) and path.parent.name != "chaos" and naps.search(path.read_text())
    }

    assert not sleepers


def test_every_request_of_a_test_has_its_time():
    """Left alone, httpx gives five seconds, which on a busy machine any answer may take."""
    hasty = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and re.fullmatch(
            r"httpx\.(get|post|put|patch|delete|request|stream|Client|AsyncClient)",
            ast.unparse(call.func),
        )
        and not any(given.arg == "timeout" for given in call.keywords)
    ]

    assert not hasty


def test_the_page_of_laws_names_the_tests_of_each():
    page = laws.PAGE.read_text()

    assert laws.render(page) == page, "run `make golden`"
    assert set(laws.tests_by_law()) <= set(LAWS)
    assert [int(number) for number in re.findall(r"^## (\d+)\. ", page, re.MULTILINE)] == [*LAWS]


def test_no_law_is_left_to_the_long_tests_alone():
    long = laws.long_tests()

    assert not [law for law, tests in laws.tests_by_law().items() if set(tests) <= long]


@pytest.mark.parametrize(
    "kept", [protocol, rooms, metrics, rows], ids=["protocol", "rooms", "metrics", "rows"]
)
def test_a_page_drawn_from_the_code_is_up_to_date(kept):
    page = kept.PAGE.read_text()

    assert kept.render(page) == page, "run `make golden`"


def test_every_row_of_what_hurt_elsewhere_has_a_test_over_connections_on_both_databases():
    told, marked = rows.rows(rows.PAGE.read_text()), rows.tests()

    assert {name for test in marked for name in test.rows} <= set(told)
    long = laws.long_tests()
    run = [test for test in marked if test.name not in long]
    connected = [test for test in run if test.is_connected]
    held = {name for test in connected if test.on_both for name in test.rows}
    alone = {name for test in connected for name in test.rows if rows.ALONE in told[name]}
    engines = {name for test in run for name in test.rows if name.startswith(rows.ENGINE)}
    assert not set(told) - held - alone - engines
