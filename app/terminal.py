"""The terminal client behind `keepwarm chat`: one conversation over the OpenAI-dialect socket.

Talks to a running server and knows nothing else of this project than what the server says on the
wire. Ctrl-C while an answer streams stops the answer; Ctrl-C or Ctrl-D at the prompt leaves.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

Event = dict[str, Any]
"""A frame of the dialect: its fields depend on `type`."""

SETTINGS = {
    "temperature": 0.2,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "max_output_tokens": 2048,
}
"""As the page asks: left to itself, a small model goes in circles for minutes."""

ENDINGS = {"response.completed", "response.incomplete", "response.failed", "error"}


class CannotConnect(Exception):
    """The server is not there or refuses the key; the message says what to do."""


def socket_url(url: str) -> str:
    """`http://host:port` to the address of the dialect's socket."""
    scheme, _, rest = url.rstrip("/").partition("://")
    return f"{'wss' if scheme == 'https' else 'ws'}://{rest}/v1/responses"


class Chat:
    """One conversation: sends turns, shows answers.

    Each turn has a connection of its own and continues by `previous_response_id`: nobody answers
    the server's pings while the user types, so a connection would not outlive a long thought.
    """

    def __init__(self, url: str, api_key: str, console: Console) -> None:
        self._url = socket_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self._console = console
        self._previous: str | None = None

    async def check(self) -> None:
        """Connect once and leave. Raises `CannotConnect`."""
        async with self._connection():
            pass

    async def turn(self, text: str) -> None:
        """Send one message and show its answer as it comes, then its receipt.

        Raises `CannotConnect`, or `ConnectionClosed` when the server goes away in mid-answer.
        """
        request: Event = {"type": "response.create", "input": text, **SETTINGS}
        if self._previous is not None:
            request["previous_response_id"] = self._previous
        async with self._connection() as socket:
            await send(socket, request)
            async with stoppable(socket) as answer:
                ended = await self._show(answer)
        self._conclude(ended)

    async def _show(self, answer: "Answer") -> Event:
        """Print the answer as it comes: what has scrolled away could not be drawn again."""
        while True:
            event = await answer.receive()
            if event["type"] == "response.output_text.delta":
                self._console.print(Text(event["delta"]), end="", soft_wrap=True)
            elif event["type"] in ENDINGS:
                self._console.print()
                return event

    def _conclude(self, ended: Event) -> None:
        if ended["type"] == "error":
            self._console.print(Text(ended["error"]["message"], style="red"))
            return
        response = ended["response"]
        self._previous = response["id"]
        if response.get("error"):
            self._console.print(Text(response["error"]["message"], style="red"))
        self._console.print(Text(receipt_line(response), style="dim"))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[ClientConnection]:
        try:
            socket = await connect(self._url, additional_headers=self._headers)
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "the API key is not valid" if status == 401 else f"it answered {status}"
            raise CannotConnect(f"The server refused the connection: {hint}.") from refused
        except (OSError, InvalidHandshake) as fault:
            raise CannotConnect(
                f"No Keepwarm at {self._url}. Start one with `keepwarm serve`."
            ) from fault
        async with socket:
            yield socket


class Answer:
    """One answer on its way; `stop` asks the server to end it, before or after it has an id."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._response_id: str | None = None
        self._stopping = False

    async def receive(self) -> Event:
        """The next event of the answer."""
        event: Event = msgspec.json.decode(await self._socket.recv())
        known = self._response_id
        self._response_id = event.get("response", {}).get("id", known)
        if known is None and self._stopping:
            await self.stop()
        return event

    async def stop(self) -> None:
        self._stopping = True
        if self._response_id is not None:
            await send(self._socket, {"type": "response.cancel", "response_id": self._response_id})


@asynccontextmanager
async def stoppable(socket: ClientConnection) -> AsyncIterator[Answer]:
    """An answer that Ctrl-C stops, instead of the program."""
    loop = asyncio.get_running_loop()
    answer = Answer(socket)
    stops: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGINT, lambda: stops.append(loop.create_task(answer.stop())))
    try:
        yield answer
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        # A stop that finds the connection gone has nothing left to stop.
        await asyncio.gather(*stops, return_exceptions=True)


async def send(socket: ClientConnection, event: Event) -> None:
    await socket.send(msgspec.json.encode(event).decode())


def receipt_line(response: Event) -> str:
    """The receipt in words, as under an answer in the browser."""
    receipt = response.get("receipt")
    if receipt is None:
        return str(response["status"])
    words = [f"{receipt['computed_tokens']:,} new", f"{receipt['cached_tokens']:,} from cache"]
    if receipt["first_token_s"] is not None:
        words.append(f"first token {receipt['first_token_s'] * 1000:,.0f} ms")
    if response["status"] != "completed":
        words.insert(0, str(response["status"]))
    return ", ".join(words)


def converse(chat: Chat, console: Console) -> None:
    """Prompt and answer in turn until the user leaves. The loop runs only while the server works."""
    with asyncio.Runner() as runner:
        runner.run(chat.check())
        console.print(Text("Ctrl-C stops an answer; Ctrl-D leaves.", style="dim"))
        while True:
            text = console.input("[bold]> [/]")
            if text.strip():
                runner.run(chat.turn(text))


def run(url: str, api_key: str) -> int:
    """Chat until the user leaves; returns the exit status."""
    console = Console()
    try:
        converse(Chat(url, api_key, console), console)
    except (EOFError, KeyboardInterrupt):
        console.print()
    except (CannotConnect, ConnectionClosed) as fault:
        console.print(Text(ending_words(fault), style="red"))
        return 1
    return 0


def ending_words(fault: Exception) -> str:
    return str(fault) if isinstance(fault, CannotConnect) else "The server closed the connection."
