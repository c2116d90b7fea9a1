"""People of a server in this process: an account, a browser, a key; and what is heard when they go."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.chat.library import DEFAULT_PERSONA
from app.db.base import Database
from app.db.types import AccountRole, KeyScope
from app.ids import UserId
from app.people.accounts import Accounts
from app.people.keys import NewKey
from tests.kit.serving import Serving
from tests.kit.tab import PASSWORD, Person, browser

_names = itertools.count(1)
SIGNED_OUT = 4401
CUT_S = 60.0
"""Rights are looked up twice a second; a busy machine is given more than the second promised."""


class Somebody(Person):
    """With the account behind the browser, and a key."""

    user_id: UserId
    key: NewKey

    @contextlib.asynccontextmanager
    async def program(self) -> AsyncIterator[ClientConnection]:
        """The dialect's socket."""
        headers = {"Authorization": f"Bearer {self.key.key}"}
        address = f"{self.server.ws_url}/v1/responses"
        async with connect(address, additional_headers=headers, open_timeout=60) as opened:
            yield opened

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """With the key."""
        return await ask(self.server.url, self.key.key, path, method, **options)


async def ask(url: str, key: str, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        return await client.request(method, path, **options)


@contextlib.asynccontextmanager
async def somebody(
    house: Serving, role: AccountRole = AccountRole.MEMBER, *scopes: KeyScope
) -> AsyncIterator[Somebody]:
    service, email = house.service, f"somebody{next(_names)}@example.org"
    user_id = house.do(service.accounts.create_user(email, "Somebody", PASSWORD, role))
    async with browser(house.site, email) as found:
        made = Somebody(house.site, email, found.client)
        made.user_id = user_id
        made.key = house.do(service.keys.create(user_id, "test", scopes=scopes or tuple(KeyScope)))
        yield made


def boss(house: Serving) -> contextlib.AbstractAsyncContextManager[Somebody]:
    return somebody(house, AccountRole.ADMIN)


async def on_the_page(house: Serving, who: Somebody, role: AccountRole) -> None:
    """An administrator moves somebody."""
    async with boss(house) as admin:
        await done(await admin.client.patch(f"/api/users/{who.user_id}", json={"role": role}))


async def beside_the_server(house: Serving, who: Somebody, role: AccountRole) -> None:
    """A command does."""
    async with contextlib.aclosing(Database(house.database_url)) as db:
        await Accounts(db).set_role(who.user_id, role)


async def done(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def nothing_to_warm(who: Person) -> None:
    """Until a server that was just started has computed its persona, as it does by itself."""
    while True:
        listed = await done(await who.client.get("/api/personas"))
        if {one["id"]: one["is_warm"] for one in listed}[DEFAULT_PERSONA.id]:
            return


async def stats(admin: Person) -> dict[str, Any]:
    """The engine's, as an administrator sees them."""
    found: dict[str, Any] = (await done(await admin.client.get("/api/status")))["stats"]
    return found


async def closes(socket: ClientConnection) -> int | None:
    """The code with which the server closes it."""
    async with asyncio.timeout(CUT_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()
    return socket.close_code


async def refusal(handshake: contextlib.AbstractAsyncContextManager[Any]) -> int:
    with pytest.raises(InvalidStatus) as refused:
        async with handshake:
            pass
    return refused.value.response.status_code
