"""What strangers' bytes may do: be refused. `python -m tests.chaos.fuzz --inputs 100000`.

Each target takes bytes as they come from outside: files that are brought in, frames of both sockets,
bodies of the dialect, frames between the server and its engine, parked KV. It may raise what it says
and nothing else, and takes no more memory than it is given. Mutation is Atheris's, libFuzzer for
Python, which follows what new code an input reaches; it begins with inputs that are whole. Each target
runs in a process of its own, and one that fails leaves the input behind.
"""

import argparse
import importlib
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

MEMORY_MIB = 2048
LONGEST_S = 30
LONGEST_BYTES = 1 << 14

Taste = Callable[[bytes], None]


class Target(NamedTuple):
    """`instrumented`: modules whose branches guide the mutation, by their beginnings."""

    instrumented: tuple[str, ...]
    whole: Callable[[], list[bytes]]
    """Inputs that are taken as they are."""
    load: Callable[[], Taste]


# ---------------------------------------------------------------- files that are brought in


def _archives() -> list[bytes]:
    message = {"id": "m1", "parent_id": None, "role": "user", "text": "Hello", "created_at": 1.0}
    ours = {
        "format": "keepwarm.conversations",
        "version": 1,
        "conversations": [
            {
                "id": "conv_1",
                "title": "A title",
                "reads": [],
                "leaf_id": "m2",
                "created_at": 1.0,
                "updated_at": 2.0,
                "messages": [
                    message,
                    message | {"id": "m2", "parent_id": "m1", "role": "assistant"},
                ],
            }
        ],
    }
    node = {
        "message": {
            "author": {"role": "user"},
            "content": {"content_type": "text", "parts": ["Hello"]},
            "create_time": 1.5,
        },
        "parent": "root",
        "children": [],
    }
    theirs = [
        {
            "title": "A title",
            "create_time": 1.0,
            "current_node": "a",
            "mapping": {"root": {"children": ["a"]}, "a": node},
        }
    ]
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("conversations.json", json.dumps(theirs))
    return [json.dumps(ours).encode(), json.dumps(theirs).encode(), packed.getvalue()]


def _imports() -> Taste:
    foreign = importlib.import_module("app.chat.foreign")
    imports = importlib.import_module("app.chat.imports")
    refused = importlib.import_module("app.errors").InvalidRequest

    def taste(data: bytes) -> None:
        try:
            found = list(foreign.work(data, ""))
        except refused:
            return
        for one in found:
            saved = imports._decode(one)
            known = {message.id for message in saved.messages}
            assert all(message.parent_id in {None, *known} for message in saved.messages)
            assert saved.leaf_id in {None, *known}
            for moment in (saved.created_at, *(message.created_at for message in saved.messages)):
                imports._moment(moment)

    return taste


PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj
4 0 obj<</Length 31>>stream
BT /F 9 Tf 9 9 Td (Hello) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R/Size 6>>
%%EOF
"""


def _documents() -> list[bytes]:
    html = (
        b"<!doctype html><title>T</title><main><h1>A</h1><p>b<ul><li>c</ul><table><tr><td>d</table>"
    )
    return [PDF, html, "Plain text, ä.\r\n".encode(), "\ufeffMarked".encode("utf-16")]


def _extraction() -> Taste:
    extract = importlib.import_module("app.chat.extract")
    refused = importlib.import_module("app.errors").InvalidRequest

    def taste(data: bytes) -> None:
        for name in ("file", "file.html"):
            try:
                found = list(extract.work(data, name))
            except refused:
                continue
            msgspec.json.decode(found[0]).get("text").encode()

    return taste


# ---------------------------------------------------------------- frames and bodies


def _frames() -> list[bytes]:
    common = {"request_id": "r", "conversation_id": "conv_1"}
    turn = common | {"client_message_id": "c", "text": "Hello"}
    cursor = {"response_id": "resp_1", "after": -1, "epoch": "e"}
    frames = [
        {"type": "hello", "protocol": 1},
        {"type": "subscribe", **common, "cursors": [cursor]},
        {"type": "turn.create", **turn, "parent_id": None},
        {"type": "turn.edit", **turn, "message_id": "msg_1", "leaf_id": "msg_2"},
        {"type": "response.cancel", "request_id": "r", "response_id": "resp_1"},
        {"type": "presence", "conversation_id": "conv_1", "state": "typing"},
        {"type": "draft", "conversation_id": None, "parent_id": None, "text": "Hel"},
        {"type": "figures.watch", "request_id": "r"},
    ]
    return [json.dumps(one).encode() for one in frames]


def _socket() -> Taste:
    socket = importlib.import_module("app.routes.inward")
    refused = importlib.import_module("app.errors").InvalidRequest

    def taste(data: bytes) -> None:
        text = data.decode(errors="replace")
        try:
            socket.decode(text)
        except refused:
            socket.asked_id(text)

    return taste


def _bodies() -> list[bytes]:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    shape = {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    bodies = [
        {"type": "response.create", "model": "m", "input": items, "tools": [tool]},
        {"model": "m", "input": "Hello", "text": {"format": shape}, "temperature": 0.5},
        {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
        {"model": "m", "messages": [], "tools": [{"type": "function", "function": tool}]},
        {"items": items, "metadata": {"a": "b"}},
        {"type": "response.steer", "response_id": "resp_1", "input": "Hello"},
    ]
    return [json.dumps(one).encode() for one in bodies]


def _dialect() -> Taste:
    requests = importlib.import_module("app.routes.openai.requests")
    refused = importlib.import_module("app.errors").InvalidRequest
    kinds = (
        requests.response_create,
        requests.completion_create,
        requests.steer_create,
        requests.conversation_create,
        requests.conversation_update,
        requests.items_create,
    )

    def taste(data: bytes) -> None:
        try:
            document = requests.read_document(data)
        except refused:
            return
        for kind in kinds:
            try:
                kind(document)
            except refused:
                continue

    return taste


# ---------------------------------------------------------------- between processes, and parked


def _calls() -> list[bytes]:
    api = importlib.import_module("engine.api")
    wire = importlib.import_module("engine.wire")
    kit = importlib.import_module("tests.kit.engines")
    message = api.Message(role=api.Role.USER, text="Hello")
    asked = api.RenderRequest(messages=(message,), seam=api.Seam.START, opens_reply=True)
    bodies = [wire.Generate(job=kit.a_job((1, 2, 3))), wire.Render(request=asked), wire.Close()]
    return [wire.pack(wire.Call(request_id=at, body=body)) for at, body in enumerate(bodies)]


def _between() -> Taste:
    wire = importlib.import_module("engine.wire")
    corrupt = importlib.import_module("engine.errors").Corrupt

    def taste(data: bytes) -> None:
        for unpack in (wire.unpack_call, wire.unpack_note):
            try:
                frame = unpack(data)
            except corrupt:
                continue
            packed = wire.pack(
                frame
            )  # compared as bytes: a number may be none, and unequal to itself
            assert wire.pack(unpack(packed)) == packed

    return taste


def _parked() -> list[bytes]:
    torch: Any = importlib.import_module("torch")
    segments = importlib.import_module("engine.model.segments")
    step = importlib.import_module("engine.step")
    head = step.SegmentHead(
        name="a",
        parent="",
        scope="user:ann",
        start=0,
        token_ids=(1, 2),
        owner_id="ann",
        session_id="s",
    )
    with tempfile.TemporaryDirectory() as folder:
        segments.SegmentFiles(Path(folder), "weights").write(head, torch.ones(2, 1, 2, 1, 4))
        return [(Path(folder) / "a.safetensors").read_bytes()]


def _segments() -> Taste:
    segments = importlib.import_module("engine.model.segments")
    corrupt = importlib.import_module("engine.errors").Corrupt
    held = tempfile.TemporaryDirectory(prefix="keepwarm-fuzz-")

    def taste(data: bytes) -> None:
        folder = Path(held.name)
        files = segments.SegmentFiles(folder, "weights")
        (folder / "a.safetensors").write_bytes(data)
        if files.heads():
            try:
                files.read("a")
            except corrupt:
                assert not (folder / "a.safetensors").exists()

    return taste


TARGETS = {
    "imports": Target(("app.chat.foreign", "app.chat.archive"), _archives, _imports),
    "documents": Target(("app.chat.extract", "pypdf"), _documents, _extraction),
    "socket": Target(("app.routes.inward", "app.routes.problems"), _frames, _socket),
    "dialect": Target(("app.routes.openai",), _bodies, _dialect),
    "between": Target(("engine.wire",), _calls, _between),
    "segments": Target(("engine.model.segments",), _parked, _segments),
}


def mutated(draw: random.Random, whole: Sequence[bytes]) -> bytes:
    """A few blind changes to one of them, for where nothing guides."""
    data = bytearray(draw.choice(whole))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.randint(1, 16))
        match draw.randrange(6):
            case 0:
                data[at:end] = draw.randbytes(end - at)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * draw.randint(1, 40)
            case 3:
                data[at:at] = draw.choice(
                    (b"[" * 3000, b'{"a":' * 3000, b"\xff", b"\\ud800", b"1e999")
                )
            case 4:
                other = draw.choice(whole)
                data[at:end] = other[draw.randrange(len(other)) :]
            case _:
                del data[at:]
    return bytes(data)


# ---------------------------------------------------------------- running


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    inputs: int
    seconds: float
    fault: str | None


def fuzz(name: str, inputs: int, seed: int, folder: Path) -> None:
    """In a process of its own: it does not come back."""
    atheris: Any = importlib.import_module("atheris")
    target = TARGETS[name]
    with atheris.instrument_imports(include=list(target.instrumented)):
        taste = target.load()
    logging.disable()  # each refused segment is told, which takes longer than refusing it
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for number, data in enumerate(target.whole()):
        (corpus / str(number)).write_bytes(data)
    limits = (f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={LONGEST_S}", f"-max_len={LONGEST_BYTES}")
    where = (f"-artifact_prefix={folder}/", str(corpus))
    atheris.Setup([name, f"-runs={inputs}", f"-seed={seed}", *limits, *where], taste)
    atheris.Fuzz()


def run(name: str, inputs: int, seed: int, folder: Path) -> Outcome:
    began = time.monotonic()
    words = ["--target", name, "--inputs", str(inputs), "--seed", str(seed), "--into", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.fuzz", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    fault = None if done.returncode == 0 else done.stdout[-4000:]
    seconds = round(time.monotonic() - began, 1)
    return Outcome(target=name, inputs=inputs, seconds=seconds, fault=fault)


def main() -> int:
    parser = argparse.ArgumentParser(description="What strangers' bytes may do: be refused.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--target", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, default=Path("fuzzed"), help="where inputs are kept")
    asked = parser.parse_args()
    if asked.target is not None:
        fuzz(asked.target, asked.inputs, asked.seed, asked.into)
    outcomes = []
    for name in asked.targets:
        outcome = run(name, asked.inputs, asked.seed, asked.into / name)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        outcomes.append(outcome)
    return 1 if any(outcome.fault for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
