"""What a browser loads: the page anew each time, its assets for ever, and words when unbuilt."""

from pathlib import Path

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from app.routes.static import CSP, page_router


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A page as the bundler leaves it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "assets" / "index-Ab12.js").write_text("export {}")
    return tmp_path


@pytest.mark.parametrize("path", ["/", "/setup"])
def test_the_page_is_asked_for_anew_each_time(built: Path, path: str):
    with TestClient(Litestar([page_router(built)])) as client:
        answer = client.get(path)

    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    assert answer.headers["content-type"].startswith("text/html")
    assert "<title>page</title>" in answer.text


def test_an_asset_never_changes_and_may_be_kept(built: Path):
    with TestClient(Litestar([page_router(built)])) as client:
        answer = client.get("/assets/index-Ab12.js")

    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]
    assert "javascript" in answer.headers["content-type"]


@pytest.mark.parametrize("path", ["/assets/../index.html", "/assets/%2e%2e/index.html"])
def test_nothing_outside_the_assets_is_served_as_one(built: Path, path: str):
    (built / "secret").write_text("hidden")
    with TestClient(Litestar([page_router(built)])) as client:
        assert client.get(path.replace("index.html", "secret")).status_code == 404


def test_a_page_that_was_not_built_says_how_to_build_it(tmp_path: Path):
    with TestClient(Litestar([page_router(tmp_path)])) as client:
        answer = client.get("/")

    assert answer.status_code == 503
    assert "make page" in answer.text


def test_the_policy_allows_no_inline_script_and_no_frame():
    assert "unsafe" not in CSP
    assert "default-src 'none'" in CSP
    assert "frame-ancestors 'none'" in CSP
