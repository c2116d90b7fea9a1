"""What a browser loads: the page anew each time, its assets for ever, and words when unbuilt."""

import asyncio
import contextlib
import gzip
import http.client
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from litestar import Litestar

from app.routes.static import CSP, page_router


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that serves this page and nothing else."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = Litestar([page_router(folder)])
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
        server.should_exit = True
        await serving


def status_of(address: httpx.URL, path: str) -> int:
    """Asked for as it is written: other clients resolve `..` themselves."""
    with contextlib.closing(http.client.HTTPConnection(address.host, address.port)) as raw:
        raw.request("GET", path)
        return raw.getresponse().status


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A page as the bundler leaves it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "admin.html").write_text("<!doctype html><title>figures</title>")
    (tmp_path / "assets" / "index-Ab12.js").write_text("export {}")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "title"), [("/", "page"), ("/setup", "page"), ("/admin", "figures")]
)
async def test_the_page_is_asked_for_anew_each_time(built: Path, path: str, title: str):
    async with served(built) as client:
        answer = await client.get(path)

    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    assert answer.headers["content-type"].startswith("text/html")
    assert f"<title>{title}</title>" in answer.text


async def test_an_asset_never_changes_and_may_be_kept(built: Path):
    async with served(built) as client:
        (built / "assets" / "later-Cd34.js").write_text("export {}")
        assert (await client.get("/assets/later-Cd34.js")).status_code == 200
        answer = await client.get("/assets/index-Ab12.js")

    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]
    assert "javascript" in answer.headers["content-type"]


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip, deflate, br", True),
        ("gzip;q=0.5", True),
        ("br", False),
        ("gzip;q=0", False),
        ("identity, gzip; q=0.0, br", False),
    ],
)
async def test_an_asset_is_packed_for_whoever_unpacks_it(built: Path, accepted: str, packed: bool):
    script = "export const word = 'again';\n" * 400
    (built / "assets" / "index-Ab12.js").write_text(script)
    async with (
        served(built) as client,
        client.stream(
            "GET", "/assets/index-Ab12.js", headers={"accept-encoding": accepted}
        ) as answer,
    ):
        sent = b"".join([part async for part in answer.aiter_raw()])

    assert answer.headers["vary"] == "accept-encoding"
    assert answer.headers.get("content-encoding") == ("gzip" if packed else None)
    assert (gzip.decompress(sent) if packed else sent).decode() == script
    assert (len(sent) < len(script) / 10) == packed


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../secret",
        "/assets/%2e%2e/secret",
        "/assets/..%2fsecret",
        "/assets/..",
        "/assets/%00",
        "/assets//etc/passwd",
    ],
)
async def test_nothing_outside_the_assets_is_served_as_one(built: Path, path: str):
    (built / "secret").write_text("hidden")
    async with served(built) as client:
        assert await asyncio.to_thread(status_of, client.base_url, path) == 404


async def test_a_page_that_was_not_built_says_how_to_build_it(tmp_path: Path):
    async with served(tmp_path) as client:
        answer = await client.get("/")

    assert answer.status_code == 503
    assert "make page" in answer.text


def test_the_policy_allows_no_inline_script_and_no_frame():
    assert "unsafe" not in CSP
    assert "default-src 'none'" in CSP
    assert "frame-ancestors 'none'" in CSP
