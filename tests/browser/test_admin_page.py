"""The administrators' page in a real Chromium: its figures are the server's, and it acts on what it shows."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize, expect

from tests.browser.test_chat import SCHEMES, axe_faults
from tests.kit.server import ROOT, Server, start_server
from tests.kit.tab import PASSWORD

pytestmark = pytest.mark.browser

TURN_MS = 60_000
LIVE_STREAM = "/api/admin/figures/events"
PAGES = [
    *("overview", "sessions", "prefixes", "misses"),
    *("usage", "people", "invitations", "groups", "keys"),
    *("audit", "health", "settings"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert (ROOT / "app" / "page" / "admin.html").is_file(), "build the page first: make page"
    with start_server(KEEPWARM_THREADS="1") as running:
        talk(running, "Tell me about lighthouses.", "And about the sea?")
        yield running


def talk(server: Server, *texts: str) -> None:
    """A conversation of a program, a turn for each text."""
    headers = {"authorization": f"Bearer {server.api_key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        previous = None
        for text in texts:
            asked = {"model": model, "input": text, "max_output_tokens": 4}
            asked |= {"previous_response_id": previous} if previous else {}
            answer = client.post("/v1/responses", json=asked)
            answer.raise_for_status()
            previous = answer.json()["id"]


@pytest.fixture(scope="module")
def context(chromium: Browser, server: Server) -> Iterator[BrowserContext]:
    size: ViewportSize = {"width": 1200, "height": 900}
    with contextlib.closing(chromium.new_context(viewport=size, locale="en-GB")) as context:
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(f"{server.url}/admin")
        page.get_by_label("Email").fill(server.admin_email)
        page.get_by_label("Password").fill(server.admin_password)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("navigation").wait_for()
        page.close()
        yield context


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


def figure(page: Page, panel: str, name: str) -> Locator:
    """A number of a panel: its name is beside it."""
    region = page.get_by_role("region", name=panel)
    return region.locator(f"dt:text-is('{name}') + dd, .name:text-is('{name}') + .value").first


def test_the_figures_shown_are_the_servers_counters_and_follow_them(page: Page, server: Server):
    stats = asked(page, "/api/status")["stats"]
    saved = figure(page, "What the cache saved", "Tokens from cache")
    free = figure(page, "The block pool", "Free")

    expect(saved).to_have_text(f"{stats['cached_tokens']:,}")
    for name in ("In use", "Copying", "Pinned", "Cached", "Free"):
        state = name.lower().replace(" ", "_")
        expect(figure(page, "The block pool", name)).to_have_text(f"{stats['blocks'][state]:,}")
    later = stats["later_turns"]
    found = figure(page, "Hits, first and later turns", "Later turns, of what was known")
    expect(found).to_have_text(percent(later["found_tokens"], later["known_tokens"]))

    talk(server, "What do fish eat?", "Say it again.")
    now = asked(page, "/api/status")["stats"]

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


def test_the_last_turns_of_a_reason_are_a_click_away(page: Page):
    region = page.get_by_role("region", name="Why turns computed more than their new part")
    region.get_by_role("link", name="First turn").click()

    row = page.get_by_role("row").nth(1)
    expect(row).to_contain_text("First turn")
    (newest, *_) = asked(page, "/api/admin/misses?reason=first_turn")["items"]
    expect(row).to_contain_text(f"{newest['prompt_tokens']:,}")


def test_a_session_is_parked_and_it_is_evicted_once_that_is_confirmed(page: Page, server: Server):
    talk(server, "Tell me more about lighthouses, please. " * 30)
    page.get_by_role("link", name="Sessions").click()
    row = page.locator("tbody tr").last
    session_id = row.locator(".mono").get_attribute("title")
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
    joined = {"token": link.partition("#token=")[2], "email": "mara@example.org"}
    accept(server, joined | {"name": "Mara", "password": PASSWORD})

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
    accept(server, account)

    with contextlib.closing(chromium.new_context(locale="en-GB")) as context:
        page = context.new_page()
        page.goto(f"{server.url}/admin")
        page.get_by_label("Email").fill("otto@example.org")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("region", name="What the cache saved").wait_for()
        sections = page.get_by_role("navigation").get_by_role("link").all_inner_texts()
        page.get_by_role("link", name="Sessions").click()
        page.locator("tbody tr").first.wait_for()

        assert page.locator("tbody button").count() == 0
        assert "Invitations" not in sections and "Audit log" not in sections
        assert "Prefix tree" in sections


def accept(server: Server, invitation: dict[str, str]) -> None:
    """As a stranger's browser."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.get("/api/account")
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        client.post("/api/setup", json=invitation).raise_for_status()


def test_the_page_speaks_german_where_that_is_wanted(chromium: Browser, server: Server):
    with contextlib.closing(chromium.new_context(locale="de-DE")) as context:
        page = context.new_page()
        page.goto(f"{server.url}/admin")
        expect(page.get_by_role("button", name="Anmelden")).to_be_visible()
        assert page.evaluate("document.documentElement.lang") == "de"


def percent(part: int, whole: int) -> str:
    """As the page writes it: one place, where it is not a nought."""
    return f"{100 * part / whole:.1f}".removesuffix(".0") + "%"


def test_the_page_can_be_used_by_everybody_on_every_screen(page: Page):
    """Axe finds nothing, on a phone and on a desk, in both themes."""
    for name in PAGES:
        page.evaluate("name => { location.hash = name }", name)
        page.get_by_role("navigation").locator(f"a[href='#{name}'][aria-current]").first.wait_for()
        for width in (375, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

                assert (name, width, scheme, axe_faults(page)) == (name, width, scheme, [])
                assert page.evaluate("document.documentElement.scrollWidth") <= width
