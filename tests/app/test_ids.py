"""Whatever stands where an id belongs, in every route and every frame: never a 5xx, never another's.

Which routes there are and what they take is read from the published OpenAPI document, and which
frames from their types: a new one is tried without a word here.
"""

import itertools
import json
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from app.frames import ErrorFrame, InwardFrame, Subscribed
from app.ids import ConversationId
from tests.kit.peers import Log, until
from tests.kit.serving import Serving
from tests.kit.staff import Somebody, boss, done, somebody

SECRET = "The seventh lighthouse is painted blue"
ODD = [
    ("conv_%00", "conv_\0"),
    ("%ED%A0%80", "\ud800"),
    ("x" * 4_000, "x" * 100_000),
    ("..%2F%27%3B--%F0%9F%94%A5", "../';--🔥"),
    ("9" * 30, "9" * 30),
]
"""As they stand in a path, and in a body."""
Ids = Callable[[str], str]
"""What stands where something of this name belongs."""
_names = itertools.count(1)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that names an id wherever it may."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


class Routes:
    """All routes that take an id, in their path, their query or their body."""

    def __init__(self, published: dict[str, Any]) -> None:
        self._schemas = published["components"]["schemas"]
        self._told = [
            (method, path, told)
            for path, methods in published["paths"].items()
            for method, told in methods.items()
        ]

    def calls(self, in_path: Ids, in_body: Ids) -> Iterator[Call]:
        asked: list[str] = []

        def named_in_body(name: str) -> str:
            asked.append(name)
            return in_body(name)

        for method, path, told in self._told:
            asked.clear()
            query = {
                one["name"]: named_in_body(one["name"]).encode(errors="replace").decode()[:200]
                for one in told.get("parameters", ())
                if one["in"] == "query" and is_id(one["name"])
            }
            content = told.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            body = self._filled(schema, named_in_body) if schema else None
            if "{" in path or asked:
                named = re.sub(r"{(\w+)}", lambda found: in_path(found[1]), path)
                yield Call(method=method.upper(), path=named, query=query, body=body)

    def _filled(self, schema: dict[str, Any], named: Ids) -> Any:
        """A document that fits, with the id in every place for one."""
        schema = self._chosen(schema)
        if "enum" in schema or "const" in schema:
            return schema.get("const", (schema.get("enum") or [None])[0])
        match schema.get("type"):
            case "object":
                asked = schema.get("required", ())
                return {
                    name: self._value(name, of, named)
                    for name, of in schema.get("properties", {}).items()
                    if name in asked or is_id(name)
                }
            case "array":
                return [self._filled(schema["items"], named)] if schema.get("minItems") else []
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
            case _:
                return "x" * schema.get("minLength", 1)

    def _chosen(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What a name stands for; of several forms the first that is one."""
        while True:
            forms = schema.get("anyOf") or schema.get("oneOf")
            if "$ref" in schema:
                schema = self._schemas[schema["$ref"].rpartition("/")[2]]
            elif forms:
                schema = next(one for one in forms if one.get("type") != "null")
            else:
                return schema

    def _value(self, name: str, schema: dict[str, Any], named: Ids) -> Any:
        if name == "client_message_id":
            return f"c{next(_names)}"
        if is_id(name):
            return [named(name)] if name.endswith("_ids") else named(name)
        return self._filled(schema, named)


def is_id(name: str) -> bool:
    """Names of things that are somebody's; what only a caller counts by is nobody's."""
    return name.endswith(("_id", "_ids")) and name not in ("request_id", "client_message_id")


async def routes(house: Serving) -> Routes:
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as client:
        return Routes((await client.get("/schema/openapi.json")).json())


async def answers(who: Somebody, calls: Iterator[Call]) -> list[tuple[Call, httpx.Response]]:
    """As a page below /api, as a program below /v1."""
    found = []
    key = {"authorization": f"Bearer {who.key.key}"}
    async with httpx.AsyncClient(base_url=who.server.url, headers=key, timeout=60) as program:
        for call in calls:
            client = program if call.path.startswith("/v1") else who.client
            content = None if call.body is None else json.dumps(call.body)
            answer = await client.request(
                call.method,
                call.path,
                params=call.query or None,
                content=content,
                headers={"content-type": "application/json"} if content else None,
            )
            found.append((call, answer))
    return found


async def test_an_odd_id_in_any_place_of_any_route_is_refused_and_breaks_nothing(
    house: Serving, told: Log
):
    tried = await routes(house)
    async with boss(house) as admin:
        seen = [
            one
            for in_path, in_body in ODD
            for one in await answers(admin, tried.calls(always(in_path), always(in_body)))
        ]
        await done(await admin.client.get("/api/account"))

    assert len(seen) > 40 * len(ODD)
    wrong = [(call, answer.status_code) for call, answer in seen if answer.status_code >= 500]
    assert not wrong
    let_in = {call.path for call, answer in seen if answer.is_success and "{" in call.path}
    assert not let_in
    assert not told.complaints


def always(one: str) -> Ids:
    return lambda _: one


@pytest.mark.row("authorisation", "CVE-2026-45349", "CVE-2026-31950", "CVE-2026-31949")
async def test_19_anothers_ids_in_any_place_of_any_route_find_nothing_and_change_nothing(
    house: Serving,
):
    tried = await routes(house)
    async with somebody(house) as ann, somebody(house) as eve:
        ids = await belongings(house, ann)
        own = {**ids, "conversation_id": await eve.conversation()}
        before = await everything(ann)
        calls = [
            call
            for named in (of(ids), of(own), always(ids["conversation_id"]), always(ann.user_id))
            for call in tried.calls(named, named)
            if any(one in str(call) for one in ids.values())
        ]
        seen = await answers(eve, iter(calls))
        after = await everything(ann)

    assert len(seen) > 100
    assert before == after
    wrong = [
        (call, answer.status_code, answer.text[:200])
        for call, answer in seen
        if answer.status_code not in (400, 403, 404, 405, 413, 422)
    ]
    assert not wrong
    assert not [call for call, answer in seen if SECRET in answer.text]


def of(ids: dict[str, str]) -> Ids:
    """What is somebody's, each in its own place."""
    names = {"leaf_id": "message_id", "parent_id": "message_id", "number": "number"}

    def named(name: str) -> str:
        name = names.get(name, name).replace("_ids", "_id")
        return "1" if name == "number" else ids.get(name, ids["conversation_id"])

    return named


async def belongings(house: Serving, who: Somebody) -> dict[str, str]:
    """One of each kind of thing that is somebody's."""
    persona = {"name": "Keeper", "instructions": SECRET}
    made = await done(await who.client.post("/api/personas", json=persona))
    document = await done(
        await who.client.post("/api/documents", json={"title": "Blue", "text": SECRET})
    )
    conversation_id = await who.conversation()
    turn = {"client_message_id": "m", "parent_id": None, "text": SECRET}
    path = f"/api/conversations/{conversation_id}/turns"
    accepted = await done(await who.client.post(path, json=turn))
    response = await done(await who.ask("POST", "/v1/responses", json={"input": SECRET}))
    key = await done(await who.client.post("/api/keys", json={"name": "mine"}))
    (login,) = await done(await who.client.get("/api/logins"))
    await until(house, lambda: house.service.supervisor.live_turns == 0)
    return {
        "conversation_id": conversation_id,
        "message_id": accepted["response"]["message_id"],
        "response_id": accepted["response"]["id"],
        "previous_response_id": response["id"],
        "persona_id": made["summary"]["id"],
        "document_id": document["summary"]["id"],
        "key_id": key["view"]["id"],
        "login_id": login["id"],
        "user_id": who.user_id,
    }


async def everything(who: Somebody) -> list[Any]:
    """What somebody has, as they see it."""
    paths = ("conversations", "personas", "documents", "account")
    found = [await done(await who.client.get(f"/api/{path}")) for path in paths]
    for one in found[0]["items"]:
        found.append(await done(await who.client.get(f"/api/conversations/{one['id']}")))
    keys = await done(await who.client.get("/api/keys"))
    logins = await done(await who.client.get("/api/logins"))
    return [*found, sorted(one["id"] for one in keys), sorted(one["id"] for one in logins)]


# ---------------------------------------------------------------- frames


def frames(named: str) -> Iterator[dict[str, Any]]:
    """Every frame that names something, with this id in every place for one."""
    for kind in typing.get_args(InwardFrame):
        fields = msgspec.structs.fields(kind)
        if any(is_id(field.name) for field in fields):
            yield {"type": kind.__struct_config__.tag} | {
                field.encode_name: placed(field, named) for field in fields if asked(field)
            }


def asked(field: msgspec.structs.FieldInfo) -> bool:
    return field.required or is_id(field.name) or field.name == "cursors"


def placed(field: msgspec.structs.FieldInfo, named: str) -> Any:
    match field.name:
        case "request_id" | "client_message_id":
            return f"r{next(_names)}"
        case "cursors":
            return [{"response_id": named, "after": -1, "epoch": "e"}]
        case "state":
            return "open"
        case name if is_id(name):
            return [named] if name.endswith("_ids") else named
        case _:
            return "Whose?"


@pytest.mark.row("authorisation", "CVE-2026-31950", "robustness")
async def test_19_an_odd_id_or_anothers_in_any_frame_is_unknown_and_the_socket_goes_on(
    house: Serving, told: Log
):
    codes = set()
    async with somebody(house) as ann, somebody(house) as eve, eve.tab() as tab:
        ids = await belongings(house, ann)
        before = await everything(ann)
        mine = await eve.conversation()
        for named in (*ids.values(), *(odd for _, odd in ODD)):
            for frame in frames(named):
                await tab.socket.send(json.dumps(frame))
            subscribe = {"type": "subscribe", "request_id": "still", "conversation_id": mine}
            await tab.socket.send(json.dumps(subscribe))
            while not isinstance(heard := await tab.receive(), Subscribed):
                if isinstance(heard, ErrorFrame):
                    codes.add(heard.error.code)
                assert SECRET not in str(heard)
        after = await everything(ann)
        await tab.subscribe(ConversationId(mine))

    assert before == after
    assert "not_found" in codes
    assert codes <= {"not_found", "invalid_request", "invalid_json"}
    assert not told.complaints
