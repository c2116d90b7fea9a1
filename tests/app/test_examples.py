"""Every example in README and docs, against a real server: commands, programs and frames of sockets."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.kit.server import ROOT, Server, signed_in

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = "http://127.0.0.1:8000"
RUN = {"sh", "python", "json", "frames page", "frames dialect"}
DRAWN = {""}
"""Pictures made of letters."""
ANSWER_S = 120


class Example(NamedTuple):
    kind: str
    text: str


def examples(page: Path) -> list[Example]:
    fenced = re.findall(r"^```(.*?)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Example(kind, text) for kind, text in fenced]


def is_made(example: Example) -> bool:
    """Commands that set everything up; whoever runs these tests has run them."""
    return all(line.startswith("make ") for line in example.text.splitlines())


def test_every_example_is_of_a_kind_that_is_run():
    kinds = {example.kind for page in PAGES for example in examples(page)}

    assert kinds <= RUN | DRAWN


SHOWN = [
    page for page in PAGES if any(one.kind in RUN and not is_made(one) for one in examples(page))
]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
async def test_the_examples_of_a_page_do_what_it_says(server: Server, page: Path, tmp_path: Path):
    printed = ""
    for example in examples(page):
        match example.kind:
            case "sh" if not is_made(example):
                printed = await run(
                    ["bash", "-euo", "pipefail", "-c", example.text], server, tmp_path
                )
            case "python":
                printed = await run([sys.executable, "-c", example.text], server, tmp_path)
            case "json":
                assert shape(json.loads(example.text)) == shape(json.loads(printed))
            case "frames page" | "frames dialect":
                await speak(example, server)
            case _:
                continue


async def run(command: list[str], server: Server, folder: Path) -> str:
    """What it prints, which is something."""
    here = [
        one.replace(ADDRESS, server.url).replace("sk-kw-...", server.api_key) for one in command
    ]
    done = await asyncio.to_thread(
        subprocess.run,
        here,
        cwd=folder,
        env=os.environ
        | {
            "KEY": server.api_key,
            "EMAIL": server.admin_email,
            "PASSWORD": server.admin_password,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_S,
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), command[-1]
    return done.stdout


def shape(value: Any) -> Any:
    """Names without values."""
    return {name: shape(one) for name, one in value.items()} if isinstance(value, dict) else None


# ---------------------------------------------------------------- frames


async def speak(example: Example, server: Server) -> None:
    """Send the lines with `>`; each line with `<` must come, whatever comes besides."""
    with signed_in(server) as client:
        known = {"conv_...": client.post("/api/conversations", json={}).json()["id"]}
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    address, headers = {
        "frames page": ("/ws", {"Cookie": cookies, "Origin": server.url}),
        "frames dialect": ("/v1/responses", {"Authorization": f"Bearer {server.api_key}"}),
    }[example.kind]
    async with connect(
        server.ws_url + address, additional_headers=headers, open_timeout=60
    ) as socket:
        early: list[Any] = []
        for line in example.text.splitlines():
            frame = json.loads(line[2:])
            if line.startswith("> "):
                await socket.send(json.dumps(filled(frame, known)))
            else:
                known |= await come(frame, socket, early)


async def come(shown: Any, socket: ClientConnection, early: list[Any]) -> dict[str, str]:
    """What stands where the example has `...`, in the first frame that is like it."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            for frame in early:
                if is_like(shown, frame):
                    early.remove(frame)
                    return dict(told(shown, frame))
            early.append(json.loads(await socket.recv()))


def is_like(shown: Any, frame: Any) -> bool:
    """An example may leave fields out."""
    if isinstance(shown, dict):
        return isinstance(frame, dict) and all(
            name in frame and is_like(one, frame[name]) for name, one in shown.items()
        )
    if isinstance(shown, str) and shown.endswith("..."):
        return isinstance(frame, str) and frame.startswith(shown.removesuffix("..."))
    return bool(shown == frame)


def told(shown: Any, frame: Any) -> Iterator[tuple[str, str]]:
    if isinstance(shown, dict):
        for name, one in shown.items():
            yield from told(one, frame[name])
    elif isinstance(shown, str) and shown.endswith("..."):
        yield shown, frame


def filled(shown: Any, known: dict[str, str]) -> Any:
    if isinstance(shown, dict):
        return {name: filled(one, known) for name, one in shown.items()}
    return known.get(shown, shown) if isinstance(shown, str) else shown
