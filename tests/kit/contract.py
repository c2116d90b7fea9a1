"""Asks a real server everything that its OpenAPI document allows and forbids, by Schemathesis.

Each operation is let in as its security says; ids in paths are now and then real ones. What is found
comes back as words, one text for each kind of fault. `make contract` asks for longer: hundreds of
examples and every border of every limit.
"""

import argparse
import contextlib
import itertools
import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import schemathesis
import structlog
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from app.db.types import AccountRole
from tests.kit.peers import open_engine
from tests.kit.serving import Serving, serving
from tests.kit.tab import SOON

PASSWORD = "a long password"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
    "unsupported_method",
    "use_after_free",
)


ENDLESS = {"/api/events", "/api/admin/cache/events", "/api/admin/figures/events"}
"""Streams that go on as long as their reader does; what waits for their ends waits for ever."""
OURS = {"key_id", "login_id", "user_id"}
"""Schemathesis finds real ids in answers, and would end the login, key and account that it asks with."""


class Supply:
    """Somebody with one of each thing, and new ones for what takes them away."""

    def __init__(self, house: Serving) -> None:
        self._house = house
        self._http = httpx.Client(base_url=house.site.url, timeout=60, limits=SOON)
        accounts = house.service.accounts
        house.do(accounts.create_user("boss@example.org", "Boss", PASSWORD, AccountRole.ADMIN))
        self._http.get("/api/account")
        self._sign()
        self._post("/api/login", email="boss@example.org", password=PASSWORD)
        self._sign()
        self.key = self._post("/api/keys", name="contract")["key"]
        self._known: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def _sign(self) -> None:
        self._http.headers["x-csrf-token"] = self._http.cookies["kw_csrf"]

    def _post(self, path: str, **asked: Any) -> Any:
        return self._http.post(path, json=asked).raise_for_status().json()

    def _logins(self) -> set[str]:
        return {one["id"] for one in self._http.get("/api/logins").raise_for_status().json()}

    @property
    def doors(self) -> dict[str, dict[str, str]]:
        """What each security scheme of the document is passed with."""
        cookies = self._http.cookies
        return {
            "login": {"api_key": cookies[self._house.service.gate.session_cookie]},
            "csrf": {"api_key": cookies["kw_csrf"]},
            "csrf_cookie": {"api_key": cookies["kw_csrf"]},
            "key": {"bearer": self.key},
        }

    def spare_login(self) -> dict[str, str]:
        """A cookie that nobody else needs."""
        logins = self._house.service.logins
        where = {"user_agent": "contract", "address": "192.0.2.1"}
        signed_in = self._house.do(logins.login("boss@example.org", PASSWORD, **where))
        return {self._house.service.gate.session_cookie: signed_in.token}

    def real(self, name: str, path: str, *, fresh: bool) -> str | None:
        """An id for this place in a path; None where any will do."""
        place = f"{path.split('/')[1]} {name}"
        if fresh or place not in self._known:
            self._make(place)
        return self._known.get(place)

    def _make(self, place: str) -> None:
        match place:
            case "api conversation_id" | "api message_id" | "api response_id":
                made = self._post("/api/conversations")
                turn = {"client_message_id": "c", "parent_id": None, "text": "Hello"}
                said = self._post(f"/api/conversations/{made['id']}/turns", **turn)
                self._known["api conversation_id"] = made["id"]
                self._known["api message_id"] = said["response"]["message_id"]
                self._known["api response_id"] = said["response"]["id"]
            case "api persona_id":
                made = self._post("/api/personas", name="Pirate", instructions="Arr.")
                self._known[place] = made["summary"]["id"]
            case "api document_id":
                made = self._post("/api/documents", title="Rivers", text="The Nile.")
                self._known[place] = made["summary"]["id"]
            case "api group_id":
                self._known[place] = self._post("/api/groups", name=f"Group {next(self._numbers)}")[
                    "id"
                ]
            case "api key_id":
                self._known[place] = self._post("/api/keys", name="spare")["view"]["id"]
            case "api invitation_id":
                self._known[place] = self._post("/api/invitations", note="You")["view"]["id"]
            case "api login_id":
                before = self._logins()
                self.spare_login()
                self._known[place] = (self._logins() - before).pop()
            case "api user_id":
                user_id, _ = self._house.new_user()
                self._known[place] = user_id
            case "v1 response_id":
                door = {"authorization": f"Bearer {self.key}"}
                asked = {"input": "Hello"}
                with httpx.Client(base_url=self._house.url, headers=door, timeout=60) as program:
                    said = program.post("/responses", json=asked).raise_for_status().json()
                self._known[place] = said["id"]
            case _:
                return


def ask(
    house: Serving, *, examples: int, seed: int = 0, phases: tuple[str, ...] = ("fuzzing",)
) -> list[str]:
    """Every kind of fault that is found."""
    supply = Supply(house)
    settings = {
        "seed": seed,
        "auth": {"openapi": supply.doors},
        "generation": {"max-examples": examples, "deterministic": True, "database": "none"},
        "phases": {
            name: {"enabled": name in phases}
            for name in ("examples", "coverage", "fuzzing", "stateful")
        },
        "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        "continue-on-failure": True,
        "request-timeout": 60,
        "suppress-health-check": ["too_slow"],
        "warnings": False,
    }
    schema = schemathesis.openapi.from_url(
        f"{house.site.url}/schema/openapi.json",
        config=SchemathesisConfig.from_dict(settings),
        timeout=60,
    )
    finite = schema.exclude(path=list(ENDLESS))
    chance = random.Random(seed)  # noqa: S311  nothing secret

    def before_call(context: Any, case: Any, kwargs: Any) -> None:
        if case.path == "/api/logout" and case.cookies:
            case.cookies |= supply.spare_login()
        for name in case.path_parameters or ():
            if name in OURS or chance.random() < 0.7:
                real = supply.real(name, case.path, fresh=case.method == "DELETE")
                case.path_parameters[name] = real or case.path_parameters[name]

    found: dict[str, str] = {}
    schemathesis.hook(before_call)
    try:
        for event in from_schema(finite).execute():
            for kind, words in _faults(event):
                found.setdefault(kind, words)
    finally:
        schemathesis.hooks.unregister(before_call)
    return [f"{kind}\n{words}" for kind, words in found.items()]


def _faults(event: Any) -> Iterator[tuple[str, str]]:
    if isinstance(event, events.NonFatalError | events.FatalError):
        yield f"error {getattr(event, 'label', '')}", str(getattr(event, "info", event))
    if isinstance(event, events.ScenarioFinished):
        recorder = event.recorder
        for checks in recorder.checks.values():
            for check in checks:
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    asked = check.failure_info.code_sample
                    yield (
                        f"{recorder.label} {check.name} {failure.title}",
                        f"{failure.message}\n{asked}",
                    )


@contextlib.contextmanager
def _house(database_url: str) -> Iterator[Serving]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), open_engine, database_url=database_url) as house,
    ):
        yield house


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database-url", default="")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with _house(given.database_url) as house:
        faults = ask(
            house,
            examples=given.examples,
            seed=given.seed,
            phases=("coverage", "fuzzing", "stateful"),
        )
    sys.stdout.write("\n\n".join(faults) + f"\n{len(faults)} kinds of faults\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
