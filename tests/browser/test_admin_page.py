"""The administrators' page in a real Chromium: its figures are the server's, and it acts on what it shows."""

import contextlib
import re
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize, expect

from app.chat.prefixes import PrefixRow, PrefixTree
from app.ids import new_user_id
from engine.terms import SubjectKind, Tier
from tests.browser.test_chat import SCHEMES, axe_faults, send, wait_for_end
from tests.kit.bigtree import DOCUMENTS, big_tree, show
from tests.kit.server import POLL_S, ROOT, Server, fork_server, signed_in
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

TURN_MS = 60_000
LIVE_STREAM = "/api/admin/figures/events"
PAGES = [
    *("overview", "sessions", "prefixes", "misses"),
    *("usage", "people", "invitations", "groups", "keys"),
    *("audit", "health", "settings"),
]
STATES = ("In use", "Copying", "Pinned", "Cached", "Free")
REASONS = {
    "first_turn": "First turn",
    "new_branch": "New branch",
    "instructions_changed": "Instructions changed",
    "input_changed": "Input changed",
    "evicted_idle": "Let go while idle",
    "evicted_pressure": "Let go for room",
    "below_granularity": "Too short to keep",
}
USAGE = {"user": "Person", "model": "Model", "key": "Key"}
PINNED = ("kept", "live", "shared", "running")
NILS = "nils@example.org"
TYPED = "What do whales eat all day in the wide and open sea?"
SENT = "Answer with yes or no: do whales sleep while they swim?"
COUNT_DRAWINGS = """() => {
  window.drawings = [];
  const { scale, fillRect } = CanvasRenderingContext2D.prototype;
  const isTree = (canvas) => canvas.parentElement?.ariaLabel === "The prefix tree";
  CanvasRenderingContext2D.prototype.scale = function (...by) {
    if (isTree(this.canvas)) drawings.push(0);
    scale.apply(this, by);
  };
  CanvasRenderingContext2D.prototype.fillRect = function (...place) {
    if (isTree(this.canvas)) drawings[drawings.length - 1] += 1;
    fillRect.apply(this, place);
  };
}"""
"""Rectangles of each drawing of the tree from now on."""
COLORS_AT = """places => {
  const canvas = document.querySelector("[aria-label='The prefix tree'] canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  return places.map(([left, top]) => {
    const { data } = context.getImageData(left, top, 8, 8);
    const pixels = Array.from({ length: 64 }, (_, at) => [...data.slice(4 * at, 4 * at + 3)]);
    return pixels.map(pixel => pixel.join());
  });
}"""
"""The 64 pixels of a square at each place, as red, green and blue."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert (ROOT / "app" / "page" / "admin.html").is_file(), "build the page first: make page"
    # Little memory, so that a few turns fill it.
    with fork_server(KEEPWARM_THREADS="1", KEEPWARM_KV_MEMORY="48MiB") as running:
        talk(running, "Tell me about lighthouses.", "And about the sea?")
        yield running.wait_until_rested()  # its figures stay until a test does something


def talk(server: Server, *texts: str, key: str | None = None, **more: object) -> str:
    """A conversation of a program, a turn for each text; the last response's id."""
    headers = {"authorization": f"Bearer {key or server.api_key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for text in texts:
            asked = {"model": model, "input": text, "max_output_tokens": 4, **more}
            answer = client.post("/v1/responses", json=asked)
            more["previous_response_id"] = answer.raise_for_status().json()["id"]
    return str(more["previous_response_id"])


def change_instructions(server: Server) -> None:
    """A conversation whose second turn is told to be somebody else."""
    first = talk(server, "Where do gulls sleep?", instructions="Talk like a keeper of the light.")
    changed = {"previous_response_id": first, "instructions": "Talk like a gull."}
    talk(server, "And where do they eat?", **changed)


def talk_alone(server: Server, text: str) -> str:
    """A session of the administrator's in a pool with room: where that is short, the engine parks unasked."""
    with signed_in(server) as admin:
        owner_id = admin.get("/api/account").json()["id"]

        def sessions() -> set[str]:
            found = admin.get("/api/admin/sessions", params={"owner_id": owner_id}).json()["items"]
            return {row["session_id"] for row in found}

        for session_id in sessions():
            admin.post(f"/api/admin/sessions/{owner_id}/{session_id}/evict").raise_for_status()
        others = sessions()  # an open page has its own brought back
        talk(server, text)
        (session_id,) = sessions() - others
    return session_id


@pytest.fixture(scope="module")
def nils(server: Server) -> str:
    """The id of somebody else, with three conversations: parked, kept warm, and left alone."""
    account = {"email": NILS, "name": "Nils", "password": PASSWORD}
    with signed_in(server) as admin:
        invitation = {"note": "Nils", "role": "member", "group_ids": []}
        token = admin.post("/api/invitations", json=invitation).raise_for_status().json()["token"]
        with joined(server, account | {"token": token}) as client:
            key = client.post("/api/keys", json={"name": "mine"}).raise_for_status().json()["key"]
            for text in ("Is the sea deep? " * 9, "Who was Fresnel? " * 9, "What is fog?"):
                talk(server, text, key=key)
            user_id: str = client.get("/api/account").json()["id"]

            def sessions() -> list[dict[str, Any]]:
                answer = admin.get("/api/admin/sessions", params={"owner_id": user_id})
                found: list[dict[str, Any]] = answer.json()["items"]
                return found

            def is_any(field: str, *values: str) -> bool:
                found = [row[field] for row in sessions()]
                return any(one in values for one in found) if values else any(found)

            parked, kept, _ = (row["session_id"] for row in sessions())
            client.patch(f"/api/conversations/{kept}", json={"kept_warm": True}).raise_for_status()
            admin.post(f"/api/admin/sessions/{user_id}/{parked}/park").raise_for_status()
            quota = f"/api/users/{user_id}/quotas/kept_warm_bytes"
            admin.put(quota, json={"allowed": 20 << 20}).raise_for_status()
            while not (is_any("disk_bytes") and is_any("retention", "kept")):
                time.sleep(POLL_S)
    return user_id


@pytest.fixture(scope="module")
def context(chromium: Browser, server: Server) -> Iterator[BrowserContext]:
    size: ViewportSize = {"width": 1200, "height": 900}
    with contextlib.closing(chromium.new_context(viewport=size, locale="en-GB")) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        sign_in(page, server, server.admin_email, server.admin_password)
        page.get_by_role("navigation").wait_for()
        page.close()
        yield context


def sign_in(page: Page, server: Server, email: str, password: str) -> None:
    page.goto(f"{server.url}/admin")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """Signed in, at the overview; the page may not complain of anything."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.goto(f"{server.url}/admin")
    page.get_by_role("region", name="What the cache saved").wait_for()
    yield page
    page.close()
    assert complaints == []


def asked(page: Page, path: str) -> Any:
    """What the server says itself."""
    return page.evaluate("path => fetch(path).then(answer => answer.json())", path)


def has_drafted(page: Page, before: int) -> bool:
    """More than so many tokens were computed for drafts, and nothing is computed now."""
    stats = counted(page)
    rests: bool = stats["running_jobs"] == stats["waiting_jobs"] == 0
    return rests and stats["drafts"]["computed"] > before


def expect_shown(page: Page, told: Callable[[Any], list[tuple[Locator, str]]]) -> None:
    """The page comes to show what is `told` of the counters, which still move: sessions end."""
    deadline = time.monotonic() + TURN_MS / 1000
    while True:
        try:
            for place, text in told(counted(page)):
                expect(place).to_have_text(text, timeout=3_000)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def counted(page: Page) -> Any:
    """The engine's counters, as they are now."""
    return asked(page, "/api/status")["stats"]


def figure(page: Page, panel: str, name: str) -> Locator:
    """A number of a panel: its name is beside it."""
    region = page.get_by_role("region", name=panel)
    return region.locator(f"dt:text-is('{name}') + dd, .name:text-is('{name}') + .value").first


def in_legend(page: Page, panel: str, name: str) -> Locator:
    """A number of those below a panel's chart."""
    return page.get_by_role("region", name=panel).locator(f".name:text-is('{name}') + .value")


def test_the_figures_shown_are_the_servers_counters_and_follow_them(page: Page, server: Server):
    stats = counted(page)
    saved = figure(page, "What the cache saved", "Tokens from cache")
    free = figure(page, "The block pool", "Free")

    expect(saved).to_have_text(f"{stats['cached_tokens']:,}")
    for name in STATES:
        state = name.lower().replace(" ", "_")
        expect(figure(page, "The block pool", name)).to_have_text(f"{stats['blocks'][state]:,}")
    blocks = [stats["blocks"][name.lower().replace(" ", "_")] for name in STATES]
    cells = page.get_by_role("img", name="Cells by state")
    told = ", ".join(f"{name} {count}" for name, count in zip(STATES, blocks, strict=True))
    expect(cells).to_have_attribute("aria-label", f"Cells by state: {told}")
    squares = cells.locator("path").evaluate_all("all => all.map(one => one.outerHTML)")
    assert [path.count("M") for path in squares] == blocks, "a cell is a block, for there are few"
    later = stats["later_turns"]
    found = figure(page, "Hits, first and later turns", "Later turns, of what was known")
    expect(found).to_have_text(percent(later["found_tokens"], later["known_tokens"]))

    with page.expect_request(lambda sent: "since_s=86400" in sent.url):
        page.get_by_text("24 hours").click()
    expect(saved).to_have_text(f"{stats['cached_tokens']:,}")

    talk(server, "What do fish eat?", "Say it again.")
    now = counted(page)

    assert now["cached_tokens"] > stats["cached_tokens"]
    expect(saved).to_have_text(f"{now['cached_tokens']:,}", timeout=TURN_MS)
    expect(free).to_have_text(f"{now['blocks']['free']:,}", timeout=TURN_MS)


def test_figures_come_live_by_the_socket_and_over_a_stream_where_websockets_are_blocked(
    context: BrowserContext, server: Server
):
    streams: list[str] = []
    context.on("request", lambda one: streams.append(one.url) if LIVE_STREAM in one.url else None)
    with contextlib.closing(context.new_page()) as page:
        with page.expect_websocket() as opened:
            page.goto(f"{server.url}/admin")
        opened.value.wait_for_event("framereceived", lambda frame: '"type":"figures"' in str(frame))
    before = list(streams)

    with contextlib.closing(context.new_page()) as page:
        page.route_web_socket("**/ws", lambda socket: socket.close())
        with page.expect_response(f"**{LIVE_STREAM}"):
            page.goto(f"{server.url}/admin")
        talk(server, "What do gulls eat?", "And what do crabs?")
        now = asked(page, "/api/status")["stats"]
        saved = figure(page, "What the cache saved", "Tokens from cache")
        expect(saved).to_have_text(f"{now['cached_tokens']:,}", timeout=TURN_MS)
        expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()

    assert before == []
    assert streams


def test_misses_are_counted_by_their_reasons(page: Page, server: Server):
    panel = "Why turns computed more than their new part"
    before = counted(page)["misses"]

    change_instructions(server)
    misses = {reason: turns for reason, turns in counted(page)["misses"].items() if turns}

    assert misses["first_turn"] > before["first_turn"]
    assert misses["instructions_changed"] > before.get("instructions_changed", 0)
    for reason, turns in misses.items():
        shown = figure(page, panel, REASONS[reason])
        expect(shown).to_have_text(f"{turns:,}", timeout=TURN_MS)
    expect(page.get_by_role("region", name=panel).get_by_role("link")).to_have_count(len(misses))


def test_each_dot_is_a_turn_of_the_time_and_stands_where_its_receipt_says(page: Page):
    region = page.get_by_role("region", name="First token, by how much was cached")
    dots = region.locator("circle")
    page.get_by_text("24 hours").click()
    turns = [
        turn
        for turn in asked(page, "/api/admin/turns?limit=500")
        if turn["first_token_s"] is not None
    ]
    expect(dots).to_have_count(len(turns))
    by_share = sorted(turns, key=lambda turn: turn["cached_tokens"] / turn["prompt_tokens"])
    least, most = by_share[0], by_share[-1]
    left, right = (
        float(str(region.get_by_text(text, exact=True).get_attribute("x")))
        for text in ("0%", "100%")
    )
    assert least["cached_tokens"] < most["cached_tokens"]
    for turn in (least, most):
        told = f"{turn['cached_tokens']:,} of {turn['prompt_tokens']:,} tokens cached"
        dot = dots.filter(has_text=told).first
        share = turn["cached_tokens"] / turn["prompt_tokens"]
        assert float(str(dot.get_attribute("cx"))) == pytest.approx(left + share * (right - left))
    highest = min(dots.all(), key=lambda dot: float(str(dot.get_attribute("cy"))))
    slowest = max(turns, key=lambda turn: turn["first_token_s"])
    told = f"{slowest['cached_tokens']:,} of {slowest['prompt_tokens']:,} tokens cached"
    assert told in str(highest.text_content())


def test_the_range_is_one_for_all_panels_and_for_the_misses_behind_them(page: Page):
    now = asked(page, "/api/admin/figures?since_s=60")["samples"][-1]["at"]
    (turn, *_) = asked(page, "/api/admin/turns?limit=500")
    (miss, *_) = asked(page, "/api/admin/misses")["items"]
    ages = {"new": now + 600, "old": now - 300}  # seconds
    turns = [turn | {"response_id": id_, "created_at": at} for id_, at in ages.items()]
    misses = [miss | {"response_id": id_, "created_at": at} for id_, at in ages.items()]
    page.route("**/api/admin/turns?*", lambda route: route.fulfill(json=turns))
    page.route(
        "**/api/admin/misses?*",
        lambda route: route.fulfill(json={"items": misses, "next_cursor": "more"}),
    )
    page.reload()
    dots, rows, more = (
        page.locator("circle"),
        page.locator("tbody tr"),
        page.get_by_role("button", name="Show more"),
    )

    expect(dots).to_have_count(2)
    with page.expect_request(lambda sent: "figures?since_s=60" in sent.url):
        page.get_by_text("1 minute").click()
    expect(dots).to_have_count(1)
    page.get_by_role("link", name="Misses").click()
    expect(rows).to_have_count(1)
    expect(more).to_have_count(0)
    page.get_by_text("15 minutes").click()
    expect(rows).to_have_count(2)
    expect(more).to_have_count(1)


def test_usage_is_told_by_person_by_model_and_by_key(page: Page, server: Server):
    page.get_by_role("link", name="Usage").click()
    cells = page.locator("tbody td")
    emails = {one["id"]: one["email"] for one in asked(page, "/api/admin/users")}
    for kind in ("user", "model", "key"):
        page.get_by_label("Apart by").select_option(kind)
        told = asked(page, f"/api/admin/usage?by={kind}")
        figures = [
            [
                emails.get(one["user_id"]) or one["model"] or key_name(one["key_id"]),
                f"{one['requests']:,}",
                f"{one['computed_tokens']:,}",
                f"{one['cached_tokens']:,}",
                percent(one["cached_tokens"], one["cached_tokens"] + one["computed_tokens"]),
                f"{one['output_tokens']:,}",
            ]
            for one in told
        ]
        expect(page.locator("thead th").first).to_have_text(USAGE[kind])
        expect(cells).to_have_text([cell for row in figures for cell in row])


def key_name(key_id: str) -> str:
    """A key by its end; what came by a login has none."""
    return f"…{key_id[-6:]}" if key_id else "the page"


def test_drafts_are_counted_as_used_and_as_wasted(
    context: BrowserContext, page: Page, server: Server
):
    panel = "Prepared while typing"
    with contextlib.closing(context.new_page()) as chat:
        chat.goto(server.url)
        field = chat.get_by_label("Message", exact=True)
        chat.get_by_role("switch", name="Prepare while I type").check()
        # What was drafted before is found, and nothing of it computed: no text is that of another try.
        name = secrets.token_hex(4)
        for typed in (TYPED, SENT):
            before = counted(page)["drafts"]["computed"]
            field.fill(f"{name}, {typed}")
            deadline = time.monotonic() + TURN_MS / 1000
            while not has_drafted(page, before):
                assert time.monotonic() < deadline
                page.wait_for_timeout(50)
        send(chat, f"{name}, {SENT}")
        wait_for_end(chat)
        expect(chat.locator(".receipt summary")).to_contain_text("1 new, ")

        def told(stats: Any) -> list[tuple[Locator, str]]:
            drafts = stats["drafts"]
            used, wasted = drafts["used"], drafts["wasted"]
            assert min(used, wasted) > 0
            return [
                (figure(page, panel, "Started"), short(drafts["started"])),
                (figure(page, panel, "Computed ahead"), short(drafts["computed"])),
                (in_legend(page, panel, "Used"), short(used)),
                (in_legend(page, panel, "Wasted"), short(wasted)),
                (figure(page, panel, "Waiting"), short(drafts["waiting"])),
                (figure(page, panel, "Used"), percent(used, used + wasted)),
            ]

        expect_shown(page, told)


def test_the_shares_are_what_each_owners_sessions_come_to(page: Page, nils: str):
    limit = size(page, asked(page, "/api/admin/shares")["owner_limit_bytes"])
    region = page.get_by_role("region", name="Fair share")
    owners = asked(page, "/api/admin/shares")["owners"]
    kept = {one["owner_id"]: size(page, one["kept_bytes"]) for one in owners}
    assert kept[nils] != "0 B"
    kept[nils] += " of 20 MiB"

    for owner, rows in sessions_by_owner(page).items():
        device, parked = (
            sum(row["device_bytes"] for row in rows),
            sum(max(row["host_bytes"], row["disk_bytes"]) for row in rows),
        )
        pinned = sum(row["device_bytes"] for row in rows if row["retention"] in PINNED)
        # What others pin ends by itself, a while after their page is closed.
        told = f"{size(page, pinned)} of {limit}" if owner == nils else re.compile(f" of {limit}")
        shown = region.get_by_role("row").filter(has=page.locator(f"a[href='#sessions/{owner}']"))
        expect(shown.locator(".number")).to_have_text(
            [f"{len(rows)}", size(page, device), told, kept[owner], size(page, parked)]
        )
        assert owner != nils or min(pinned, parked) > 0


def sessions_by_owner(page: Page) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in asked(page, "/api/admin/sessions?limit=500")["items"]:
        found[row["owner_id"]].append(row)
    return found


def test_sessions_are_shown_of_one_owner_and_asked_for_now_and_then(
    chromium: Browser, context: BrowserContext, server: Server, nils: str
):
    looks: list[str] = []
    start = datetime(2030, 1, 1, tzinfo=UTC)
    login = context.storage_state()
    # A clock is one for all pages of a context.
    with contextlib.closing(chromium.new_context(storage_state=login)) as still:
        page = still.new_page()
        page.on("request", lambda sent: looks.append(sent.url) if "sessions?" in sent.url else None)
        page.clock.install(time=start)
        page.goto(f"{server.url}/admin")
        page.clock.pause_at(start + timedelta(hours=1))
        page.get_by_role("region", name="Fair share").get_by_role("link", name=NILS).click()

        owner, rows = page.get_by_label("Owner"), page.locator("tbody tr")
        expect(owner).to_have_value(nils)
        expect(rows.filter(has_text=NILS)).to_have_count(3)
        expect(rows).to_have_count(3)
        with page.expect_response(lambda answer: "sessions?" in answer.url):
            page.clock.run_for(4000)
        assert [f"owner_id={nils}" in url for url in looks] == [True, True]

        owner.select_option("")
        expect(rows).to_have_count(len(asked(page, "/api/admin/sessions?limit=100")["items"]))
        assert page.url.endswith("#sessions")


def test_personas_and_documents_are_a_click_away_where_they_are_published(page: Page):
    for name, act in (("Documents", "Write a document"), ("Personas", "New persona")):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        dialog = page.get_by_role("dialog", name="Settings")
        expect(dialog.get_by_role("button", name=act)).to_be_visible()
        page.go_back()


def test_health_tells_what_the_engine_runs_on_and_how_much_memory_there_is(page: Page):
    page.get_by_role("link", name="Health").click()
    panel = "Hardware and memory"
    told = asked(page, "/api/admin/health")["engine"]
    found, pool, held = told["hardware"], told["pool_bytes"], figure(page, panel, "Memory used")

    expect(figure(page, panel, "Processor")).to_have_text(found["processor"])
    expect(figure(page, panel, "Pool for KV")).to_have_text(size(page, pool))
    expect(held).to_contain_text(f" of {size(page, found['machine_bytes'])}")


def test_the_last_turns_of_a_reason_are_a_click_away(page: Page, server: Server):
    change_instructions(server)
    region = page.get_by_role("region", name="Why turns computed more than their new part")
    region.get_by_role("link", name="Instructions changed").click(timeout=TURN_MS)

    (newest, *_) = asked(page, "/api/admin/misses?reason=instructions_changed")["items"]
    cells = page.get_by_role("row").nth(1).get_by_role("cell")
    expect(cells.nth(1)).to_have_text("Instructions changed")
    expect(cells.nth(2)).to_have_text(f"{newest['differs_at'] + 1:,}")  # as in its receipt
    expect(cells.nth(3)).to_have_text(f"{newest['prompt_tokens']:,}")


def test_a_session_is_parked_and_it_is_evicted_once_that_is_confirmed(page: Page, server: Server):
    session_id = talk_alone(server, "Tell me more about lighthouses, please. " * 30)
    page.get_by_role("link", name="Sessions").click()
    mine = page.locator("tbody tr").filter(has=page.locator(f"[title='{session_id}']"))

    expect(mine.locator(".state")).to_have_text("Warm")
    mine.get_by_role("button", name="Park").click()
    expect(mine).to_contain_text("on disk", timeout=TURN_MS)
    mine.get_by_role("button", name="Evict").click()
    page.get_by_role("button", name="Cancel").click()
    expect(mine).to_have_count(1)
    mine.get_by_role("button", name="Evict").click()
    page.get_by_role("dialog").get_by_role("button", name="Evict").click()

    expect(mine).to_have_count(0)


def test_a_row_of_the_sessions_tells_what_the_server_does(page: Page, nils: str):
    page.goto(page.url.partition("#")[0] + f"#sessions/{nils}")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)

    for told in sessions_by_owner(page)[nils]:
        blocks = [told[name] for name in ("blocks", "pinned_blocks", "shared_blocks")]
        all_, pinned, shared = (f"{count:,}" for count in blocks)
        receipt = told["last_turn"]["receipt"]
        row = rows.filter(has=page.locator(f"[title='{told['session_id']}']"))
        held = row.locator("td").nth(2)
        expect(held).to_contain_text(size(page, told["device_bytes"]))
        expect(held).to_contain_text(f"{all_} blocks, {pinned} pinned, {shared} shared")
        if told["disk_bytes"]:
            expect(held).to_contain_text(f"{size(page, told['disk_bytes'])} on disk")
        expect(row.locator("td").nth(4)).to_contain_text(
            f"{receipt['computed_tokens']:,} new, {receipt['cached_tokens']:,} cached"
        )
        is_kept = told["retention"] == "kept"
        assert (told["pinned_blocks"] > 0) == (is_kept and told["blocks"] > 0)
        if is_kept:
            expect(row.get_by_role("button", name="Unpin")).to_be_enabled()
        else:
            expect(row.get_by_role("button", name="Unpin")).to_be_disabled()


def test_a_kept_session_is_unpinned_and_parked(page: Page, server: Server):
    session_id = talk_alone(server, "Tell me of the tides. " * 30)
    page.get_by_role("link", name="Sessions").click()
    mine = page.locator("tbody tr").filter(has=page.locator(f"[title='{session_id}']"))
    with signed_in(server) as admin:
        path = f"/api/conversations/{session_id}"
        admin.patch(path, json={"kept_warm": True}).raise_for_status()

        expect(mine).to_contain_text("Kept warm")
        mine.get_by_role("button", name="Unpin").click()
        expect(mine).to_contain_text(" 0 pinned")
        expect(mine.get_by_role("button", name="Unpin")).to_be_disabled()

        mine.get_by_role("button", name="Park").click()
        expect(mine).to_contain_text("on disk", timeout=TURN_MS)


def test_the_prefix_tree_is_drawn_and_every_branch_can_be_reached_with_the_keyboard(page: Page):
    page.get_by_role("link", name="Prefix tree").click()
    page.get_by_role("img", name="The prefix tree").wait_for()
    told = asked(page, "/api/admin/prefixes?limit=3000")["nodes"]
    page.get_by_text("As a table").press("Enter")
    rows = page.get_by_role("region", name="As a table").locator("tbody tr")

    expect(rows).to_have_count(len(told))
    rows.last.get_by_role("button").press("Enter")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Whole tree").press("Enter")
    expect(rows).to_have_count(len(told))
    drawn = page.evaluate(
        "() => { const c = document.querySelector('canvas');"
        " return c.getContext('2d').getImageData(8, 8, 1, 1).data[3] }"
    )
    assert drawn > 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_tree_is_as_wide_as_its_tokens_coloured_by_class_and_striped_by_tier(
    page: Page, scheme: Literal["light", "dark"]
):
    page.emulate_media(color_scheme=scheme)
    device, host, disk = Tier.DEVICE, Tier.HOST, Tier.DISK
    show(
        page,
        PrefixTree(
            nodes=(
                branch(1, None, "shared", device, tokens=100, all_tokens=250),
                branch(2, 1, "kept", device, tokens=60),
                branch(-1, 1, "idle", disk, tokens=50),
                branch(-2, 1, "recent", host, tokens=40),
            ),
            left_out=0,
        ),
    )
    place = page.get_by_role("img", name="The prefix tree").bounding_box()
    assert place is not None
    across = place["width"] / 160
    low, row = 30, 52  # below the names, in the first of three rows
    seen = page.evaluate(
        COLORS_AT,
        [
            [across * 100 - 12, low],  # a trunk is there once, and ends where its branches begin
            [across * 100 + 4, low],
            [across * 160 - 12, low],
            [across * 100 + 4, low + row],
            [across * 150 - 12, low + row],
            [across * 100 + 4, low + 2 * row],
            [across * 150, low + row],
        ],
    )
    paints = [Counter(pixels) for pixels in seen]
    names = ("Shared", "Kept warm", "Idle", "Recent")
    shared, kept, idle, recent = (paint_of(page, name) for name in names)

    for paint, (name, plain) in zip(
        paints,
        [(shared, 64), (kept, 64), (kept, 64), (idle, 36), (idle, 36), (recent, 48), ((), 0)],
        strict=True,
    ):
        found = sum(pixels for one, pixels in paint.items() if is_near(one, name))
        assert found == plain, (name, paint)
    legend = page.locator(".tier + .name")
    expect(legend).to_have_text(["Pool", "Memory", "Disk"])
    expect(page.locator(".tier ~ .value")).to_have_text(["2", "1", "1"])
    stripes = (
        "all => all.map(one => getComputedStyle(one).backgroundImage.split('repeating').length)"
    )
    assert page.locator("span.tier").evaluate_all(stripes) == [1, 2, 3]


def paint_of(page: Page, name: str) -> tuple[int, ...]:
    """The colour of a class in the legend."""
    dot = page.locator(f".dot:has(+ .name:text-is('{name}'))")
    color = dot.evaluate("one => getComputedStyle(one).backgroundColor")
    return tuple(int(part) for part in re.findall(r"\d+", color)[:3])


def is_near(pixel: str, paint: tuple[int, ...]) -> bool:
    """A canvas keeps colours that light passes through with less than eight bits."""
    parts = [int(part) for part in pixel.split(",")]
    return bool(paint) and all(abs(one - of) <= 2 for one, of in zip(parts, paint, strict=True))


def branch(
    node_id: int,
    parent_id: int | None,
    retention: str,
    tier: Tier,
    *,
    tokens: int,
    all_tokens: int | None = None,
) -> PrefixRow:
    return PrefixRow(
        node_id=node_id,
        parent_id=parent_id,
        kind=SubjectKind.SESSION if parent_id else SubjectKind.PERSONA,
        subject_id=f"subject_{node_id}",
        owner_id="user_1",
        tier=tier,
        scope="operator",
        tokens=tokens,
        blocks=4,
        bytes=1000 * tokens,
        all_tokens=all_tokens or tokens,
        in_use=False,
        retention=retention,
        hits=1,
        paths=1,
        idle_s=1.0,
    )


def test_the_prefix_tree_follows_a_turn(page: Page, server: Server):
    page.get_by_role("link", name="Prefix tree").click()
    page.get_by_text("As a table").press("Enter")
    page.get_by_role("region", name="As a table").locator("tbody tr").first.wait_for()
    with signed_in(server) as admin:
        owner_id = admin.get("/api/account").json()["id"]

    def own() -> set[str]:
        return {row["session_id"] for row in sessions_by_owner(page)[owner_id]}

    before = own()
    talk(server, "How far can a lighthouse be seen?")

    (new,) = own() - before
    table = page.get_by_role("region", name="As a table")
    expect(table.locator("tbody tr").filter(has_text=new[-6:])).to_have_count(1, timeout=TURN_MS)


def test_of_a_prefix_tree_of_thousands_of_nodes_no_more_is_drawn_than_is_seen(page: Page):
    page.evaluate(COUNT_DRAWINGS)
    show(page, big_tree(5000))
    tree = page.get_by_role("img", name="The prefix tree")
    place = tree.bounding_box()
    assert place is not None
    moves = 40

    for at in range(moves):
        page.mouse.move(place["x"] + 0.9 * place["width"], place["y"] + 10 * at)
    tree.click(position={"x": 0.3 * place["width"], "y": 10})
    expect(page.locator(".path button")).to_have_count(3)

    drawings = page.evaluate("drawings")
    assert len(drawings) <= moves + 4
    assert max(drawings) <= 1 + DOCUMENTS + 2 * place["height"]


def test_somebody_is_invited_joins_a_group_gets_a_quota_and_is_shut_out(page: Page, server: Server):
    page.get_by_role("link", name="Groups").click()
    page.get_by_label("Name of the group").fill("Editors")
    page.get_by_role("button", name="Make a group").click()
    page.get_by_role("region", name="Editors").wait_for()

    page.get_by_role("link", name="Invitations").click()
    page.get_by_label("Whom it is for").fill("Mara")
    page.get_by_label("Editors").check()
    page.get_by_role("button", name="Make a link").click()
    link = page.locator("code").inner_text()
    mara = {"email": "mara@example.org", "name": "Mara", "password": PASSWORD}
    with joined(server, mara | {"token": link.partition("#token=")[2]}):
        pass

    page.get_by_role("link", name="People").click()
    row = page.get_by_role("row").filter(has_text="mara@example.org")
    row.get_by_role("button", name="New password").click()
    address = page.locator("code").inner_text()
    assert page.context.browser is not None
    with contextlib.closing(page.context.browser.new_context()) as elsewhere:
        other = elsewhere.new_page()
        other.goto(address)
        other.get_by_label("Password").fill("quite another password")
        other.get_by_role("button", name="Set the password").click()
        expect(other.get_by_text("Mara", exact=True).first).to_be_visible()
        assert "password" not in other.url
    row.get_by_label("Role of").select_option("auditor")
    row.get_by_role("button", name="Quotas").click()
    quotas = page.get_by_role("region", name="Quotas of mara@example.org").first
    turns = quotas.get_by_role("row").filter(has_text="Turns a day")
    turns.get_by_label("New value").fill("7")
    turns.get_by_role("button", name="Set", exact=True).click()
    expect(turns).to_contain_text("set here")
    row.get_by_role("button", name="Shut out").click()
    page.get_by_role("dialog").get_by_role("button", name="Shut out").click()
    expect(row).to_contain_text("Let in again")

    (mara,) = [one for one in asked(page, "/api/users") if one["email"] == "mara@example.org"]
    (group,) = asked(page, "/api/groups")
    assert (mara["role"], mara["is_disabled"]) == ("auditor", True)
    assert group["member_ids"] == [mara["id"]]
    told = asked(page, f"/api/users/{mara['id']}/quotas")
    assert told == [{"kind": "requests_per_day", "allowed": 7}]
    page.get_by_role("link", name="Audit log").click()
    expect(page.locator("tbody tr").first).to_contain_text("Account shut out")


def test_an_auditor_sees_figures_and_finds_nothing_to_act_on(
    chromium: Browser, page: Page, server: Server
):
    page.get_by_role("link", name="Invitations").click()
    page.get_by_label("Whom it is for").fill("Otto")
    page.get_by_role("combobox", name="Role").select_option("auditor")
    page.get_by_role("button", name="Make a link").click()
    token = page.locator("code").inner_text().partition("#token=")[2]
    account = {"token": token, "email": "otto@example.org", "name": "Otto", "password": PASSWORD}
    with joined(server, account):
        pass

    with contextlib.closing(chromium.new_context(locale="en-GB")) as context:
        page = context.new_page()
        sign_in(page, server, "otto@example.org", PASSWORD)
        page.get_by_role("region", name="What the cache saved").wait_for()
        sections = page.get_by_role("navigation").get_by_role("link").all_inner_texts()
        page.get_by_role("link", name="Sessions").click()
        page.locator("tbody tr").first.wait_for()

        assert page.locator("tbody button").count() == 0
        assert "Invitations" not in sections and "Audit log" not in sections
        assert "Prefix tree" in sections


def test_whose_role_is_taken_away_is_told_and_goes_on_when_it_is_given_back(
    chromium: Browser, server: Server
):
    pia = {"email": f"{new_user_id()}@example.org", "name": "Pia", "password": PASSWORD}
    with (
        signed_in(server) as boss,
        contextlib.closing(chromium.new_context(locale="en-GB")) as context,
    ):
        invitation = {"note": "Pia", "role": "admin", "group_ids": []}
        token = boss.post("/api/invitations", json=invitation).raise_for_status().json()["token"]
        with joined(server, pia | {"token": token}) as client:
            user_id = client.get("/api/account").json()["id"]

        def become(role: str) -> None:
            boss.patch(f"/api/users/{user_id}", json={"role": role}).raise_for_status()

        page = context.new_page()
        sign_in(page, server, pia["email"], PASSWORD)
        told = page.get_by_role("alert").filter(has_text="Your role was changed")
        invitations = page.get_by_role("navigation").get_by_role("link", name="Invitations")
        live = page.get_by_role("status").filter(has_text="Live")
        expect(live).to_be_visible()
        become("member")
        expect(told).to_be_focused()
        expect(page.get_by_role("link", name="Back to the chat")).to_be_visible()
        assert axe_faults(page) == []

        become("auditor")
        page.get_by_role("button", name="Try again").click()
        expect(live).to_be_visible()
        expect(invitations).to_have_count(0)
        become("admin")
        expect(invitations).to_be_visible()
        become("auditor")
        expect(invitations).to_have_count(0)
        become("member")
        expect(told).to_be_visible()


@contextlib.contextmanager
def joined(server: Server, invitation: dict[str, str]) -> Iterator[httpx.Client]:
    """As a stranger's browser, which is signed in by this."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.get("/api/account")
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        client.post("/api/setup", json=invitation).raise_for_status()
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        yield client


def test_the_page_speaks_german_where_that_is_wanted(chromium: Browser, server: Server):
    with contextlib.closing(chromium.new_context(locale="de-DE")) as context:
        page = context.new_page()
        page.goto(f"{server.url}/admin")
        expect(page.get_by_role("button", name="Anmelden")).to_be_visible()
        assert page.evaluate("document.documentElement.lang") == "de"
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert (scheme, axe_faults(page)) == (scheme, [])


def percent(part: int, whole: int) -> str:
    """As the page writes it: one place, where it is not a nought."""
    return f"{100 * part / whole:.1f}".removesuffix(".0") + "%"


def short(value: int) -> str:
    """As the page writes what may be long."""
    return f"{value:,}" if value < 10_000 else f"{value / 1000:.1f}".removesuffix(".0") + "K"


def size(page: Page, rest: float) -> str:
    """As the page writes bytes: three digits."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if rest >= 1000:
            rest, unit = rest / 1024, larger
    digits = "rest => new Intl.NumberFormat('en', { maximumSignificantDigits: 3 }).format(rest)"
    return f"{page.evaluate(digits, rest)} {unit}"


def test_what_was_let_go_is_counted_by_its_reason_and_what_was_missed_of_it(
    page: Page, server: Server
):
    panel = "Let go, and regretted"
    # More than the pool holds, said again and again: what is let go is not always the same.
    said = [f"{number} ships came in. " * 40 for number in range(12)]
    for text in said * 3:
        talk(server, text, store=False)
        if counted(page)["regretted_tokens"]:
            break
    newest = asked(page, "/api/admin/sessions?limit=500")["items"][-1]
    with signed_in(server) as admin:
        path = f"/api/admin/sessions/{newest['owner_id']}/{newest['session_id']}/evict"
        admin.post(path).raise_for_status()

    def told(stats: Any) -> list[tuple[Locator, str]]:
        gone, regretted = let_go(stats), stats["regretted_tokens"]
        for_room = gone["pressure"] + gone["quota"]
        assert min(gone["pressure"], gone["forgotten"], regretted) > 0
        missed = f"{short(regretted)} · {percent(regretted, for_room)}"
        return [
            (in_legend(page, panel, "Deleted"), short(gone["forgotten"])),
            (in_legend(page, panel, "For room"), short(gone["pressure"])),
            (in_legend(page, panel, "Over quota"), short(gone["quota"])),
            (figure(page, panel, "Let go to make room"), short(for_room)),
            (figure(page, panel, "Regretted"), missed),
        ]

    expect_shown(page, told)


def let_go(stats: Any) -> Counter[str]:
    """Tokens that left the pool, by the reason."""
    tokens: Counter[str] = Counter()
    for one in stats["evictions"]:
        tokens[one["reason"]] += one["tokens"]
    return tokens


def test_the_page_can_be_used_by_everybody_on_every_screen(page: Page):
    """Axe finds nothing, on the smallest phone and on a wall, in both themes."""
    for name in PAGES:
        page.evaluate("name => { location.hash = name }", name)
        page.get_by_role("navigation").locator(f"a[href='#{name}'][aria-current]").first.wait_for()
        # Colours do not depend on the width, nor what fits on the colours.
        for width, scheme in zip((320, 3840), SCHEMES, strict=True):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

            assert (name, width, scheme, axe_faults(page)) == (name, width, scheme, [])
            assert page.evaluate("document.documentElement.scrollWidth") <= width
