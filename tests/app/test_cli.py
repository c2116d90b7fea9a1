"""The commands as a user types them: what they do, and how they say what is wrong."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import httpx
import pytest

from app.admin import QUOTAS, ROLES, SCOPES
from app.db.base import Database
from app.db.types import AccountRole, AuditDoor, KeyScope, QuotaKind
from app.people.audit import Audit, AuditFilter
from app.settings import SETTINGS, Settings
from tests.kit.db import migrate_to
from tests.kit.model import with_template
from tests.kit.server import complaint, fork_server, keepwarm, new_folder, run_command, start_server
from tests.kit.templates import ADDS_AN_EMPTY_THOUGHT, DATED, MARKS_EARLIER_QUESTIONS


@pytest.fixture(scope="module")
def migrated() -> Path:
    folder = new_folder()
    run_command(folder, "migrate")
    return folder


def test_the_help_of_serve_shows_every_setting(tmp_path: Path):
    shown = keepwarm(tmp_path, "serve", "--help").stdout

    assert all(setting.variable in shown for setting in SETTINGS)
    assert max(map(len, shown.splitlines())) <= 100


def test_migrating_twice_is_migrating_once(tmp_path: Path):
    first = run_command(tmp_path, "migrate")
    second = run_command(tmp_path, "migrate")

    assert "now at revision" in first
    assert "already at revision" in second


async def test_migrating_an_older_database_leaves_it_in_a_file(tmp_path: Path):
    (tmp_path / "data").mkdir()
    await migrate_to(f"sqlite:///{tmp_path}/data/keepwarm.db", "0001")

    told = await asyncio.to_thread(run_command, tmp_path, "migrate")

    assert f"as it was: {tmp_path}/data/keepwarm.0001.backup" in told
    assert (tmp_path / "data" / "keepwarm.0001.backup").stat().st_size > 0


@pytest.mark.parametrize("words", [("doctor",), ("admin", "user", "list")])
def test_a_database_at_a_wrong_revision_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, words: tuple[str, ...]
):
    assert "keepwarm migrate" in complaint(tmp_path, *words)


@pytest.mark.parametrize(
    "words",
    [("serve",), ("migrate",), ("backup", "FILE"), ("doctor",), ("admin", "user", "list")],
    ids=" ".join,
)
@pytest.mark.parametrize("database", ["no server", "no folder", "no database"])
def test_a_database_that_cannot_be_used_is_named_with_its_setting(
    tmp_path: Path, words: tuple[str, ...], database: str
):
    urls = {
        "no server": "postgresql://u:s3cret@127.0.0.1:1/x",
        "no folder": "sqlite:////proc/x/keepwarm.db",
        "no database": f"sqlite:///{tmp_path}/keepwarm.db",
    }
    (tmp_path / "keepwarm.db").write_text("Something else altogether. " * 100)

    told = complaint(tmp_path, *words, KEEPWARM_DATABASE_URL=urls[database])

    assert "KEEPWARM_DATABASE_URL" in told or "keepwarm migrate" in told or "no database" in told
    assert "s3cret" not in told


def test_all_bad_settings_are_named_at_once_with_the_fix(tmp_path: Path):
    told = complaint(tmp_path, "serve", KEEPWARM_PORT="eighty", KEEPWARM_MODLE="x")

    assert "KEEPWARM_PORT is 'eighty': use a number" in told
    assert "did you mean KEEPWARM_MODEL" in told


def test_a_model_that_is_not_there_is_named_with_its_setting(migrated: Path):
    told = complaint(migrated, "serve", KEEPWARM_MODEL="/no/such/model")

    assert "/no/such/model" in told


def test_the_doctor_names_a_templates_faults_and_their_first_differing_tokens(
    migrated: Path, tmp_path: Path
):
    model = with_template(tmp_path, DATED + ADDS_AN_EMPTY_THOUGHT)

    told = run_command(migrated, "doctor", KEEPWARM_MODEL=model)

    assert "chat template: appendable: turns stay warm" in told
    assert "it prints the date or time: what is stored keeps its date" in told
    date = re.search(r"first differing token: number \d+, '(.+)' against '(.+)'", told)
    assert date is not None
    assert date[1] != date[2]
    assert r"before a reply '<think>\n\n</think>\n\n' is there at first and not later" in told
    assert re.search(r"first differing token: number \d+, '<' against 'That'", told)


def test_the_doctor_says_which_templates_cost_a_whole_rendering(migrated: Path, tmp_path: Path):
    told = run_command(
        migrated, "doctor", KEEPWARM_MODEL=with_template(tmp_path, MARKS_EARLIER_QUESTIONS)
    )

    assert "chat template: unstable: each turn renders the whole history anew" in told
    assert "it rewrites an earlier user message\n" in told
    assert re.search(r"first differing token: number \d+, 'How' against '\['", told)


def test_a_port_that_is_taken_and_a_folder_that_is_served_are_told_apart(migrated: Path):
    with fork_server() as server:
        taken = complaint(migrated, "serve", KEEPWARM_PORT=str(server.port))
        twice = complaint(server.folder, "serve")

    assert f"Cannot listen on 127.0.0.1:{server.port}" in taken
    assert "already" in twice
    assert "KEEPWARM_DATA_DIR" in twice


def test_people_and_keys_are_made_listed_and_ended(migrated: Path):
    made = ("admin", "user", "create", "ada@example.org", "--admin", "--password", "long enough")
    run_command(migrated, *made)
    key = run_command(migrated, "admin", "key", "create", "--name", "script").strip()
    listed = run_command(migrated, "admin", "key", "list")
    found = re.search(r"key_\w+", listed)
    assert found is not None
    run_command(migrated, "admin", "key", "revoke", found[0])

    assert "ada@example.org  admin" in run_command(migrated, "admin", "user", "list")
    assert key.startswith("sk-kw-")
    assert "script" in listed
    assert key not in listed
    assert "key_" not in run_command(migrated, "admin", "key", "list")
    assert "ada@example.org" in complaint(migrated, *made) or "address" in complaint(
        migrated, *made
    )


def test_an_account_is_moved_shut_out_let_in_and_removed(migrated: Path):
    made = ("admin", "user", "create", "eve@example.org", "--password", "long enough")
    run_command(migrated, *made)

    def listed() -> str:
        lines = run_command(migrated, "admin", "user", "list").splitlines()
        return "".join(line for line in lines if line.startswith("eve@"))

    seen = [listed()]
    for words in (
        ("role", "eve@example.org", "auditor"),
        ("disable", "eve@example.org"),
        ("enable", "eve@example.org"),
        ("password", "eve@example.org", "--password", "even longer"),
        ("remove", "eve@example.org", "--yes"),
    ):
        run_command(migrated, "admin", "user", *words)
        seen.append(listed())

    assert [line.split()[1:2] for line in seen] == [["member"], *[["auditor"]] * 4, []]
    assert [line.endswith("disabled") for line in seen] == [False, False, True, *[False] * 3]
    assert "no such account" in complaint(migrated, "admin", "user", "disable", "eve@example.org")
    assert asyncio.run(done_by_commands(migrated))[-6:] == [
        "account.created",
        "account.role",
        "account.disabled",
        "account.enabled",
        "account.password",
        "account.removed",
    ]


async def done_by_commands(folder: Path) -> list[str]:
    """What the audit log tells of the commands on a folder, the oldest first."""
    url = Settings(data_dir=folder / "data").database_url
    async with contextlib.aclosing(Database(url)) as db:
        page = await Audit(db).read(AuditFilter(), limit=200)
    return [row.act for row in page.items[::-1] if row.door is AuditDoor.COMMAND]


def test_nobody_is_removed_by_an_empty_line(migrated: Path):
    made = ("admin", "user", "create", "bob@example.org", "--password", "long enough")
    run_command(migrated, *made)

    told = complaint(migrated, "admin", "user", "remove", "bob@example.org")

    assert "Aborted" in told
    assert "bob@example.org" in run_command(migrated, "admin", "user", "list")


def test_a_key_is_made_for_a_purpose_and_a_time(migrated: Path):
    made = ("admin", "user", "create", "cat@example.org", "--password", "long enough")
    run_command(migrated, *made)
    whose = ("--email", "cat@example.org")
    wanted = ("--scope", "figures", "--scope", "read", "--days", "30")
    run_command(migrated, "admin", "key", "create", *whose, *wanted)

    listed = run_command(migrated, "admin", "key", "list", *whose)

    assert re.search(r"read,figures  used never  ends \d{4}-\d\d-\d\d\n", listed)


def test_quotas_are_set_shown_and_lifted(migrated: Path):
    made = ("admin", "user", "create", "dan@example.org", "--password", "long enough")
    run_command(migrated, *made)
    dan = ("--email", "dan@example.org")

    run_command(migrated, "admin", "quota", "set", "tokens_per_day", "1000", *dan)
    run_command(migrated, "admin", "quota", "set", "sockets", "none", *dan)
    shown = run_command(migrated, "admin", "quota", "list", *dan)
    run_command(migrated, "admin", "quota", "lift", "sockets", *dan)
    left = run_command(migrated, "admin", "quota", "list", *dan)
    nobody = complaint(migrated, "admin", "quota", "list", "--group", "Nobodies")

    assert shown.splitlines() == ["tokens_per_day  1000", "sockets  none"]
    assert left.splitlines() == ["tokens_per_day  1000"]
    assert "no group 'Nobodies'" in nobody


def test_the_commands_know_every_role_scope_and_quota():
    assert set(ROLES) == set(AccountRole)
    assert set(SCOPES) == set(KeyScope)
    assert tuple(QuotaKind) == QUOTAS


def test_a_key_of_nobody_is_refused(migrated: Path):
    told = complaint(migrated, "admin", "key", "create", "--email", "nobody@example.org")

    assert "no such account" in told


def test_the_first_start_prints_a_link_that_makes_one_administrator_once():
    with fork_server(KEEPWARM_ADMIN_EMAIL="", KEEPWARM_ADMIN_PASSWORD="") as server:
        link = re.search(rf"{server.url}/setup#token=(\S+)", server.output)
        assert link is not None
        body = {"token": link[1], "email": "first@example.org", "name": "F", "password": "x" * 12}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            client.get("/")
            client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
            first = client.post("/api/setup", json=body)
            account = client.get("/api/account")
            client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
            second = client.post("/api/setup", json=body)

    assert (first.status_code, first.json()["role"]) == (200, "admin")
    assert account.json()["email"] == "first@example.org"
    assert second.status_code == 401


@pytest.mark.long
def test_a_signal_ends_the_server_and_its_engine_with_success():
    with start_server() as server:
        status = server.stop()

    assert status == 0
    assert "Traceback" not in server.output


def test_the_log_tells_of_requests_and_not_of_their_text():
    with fork_server() as server:
        answer = httpx.post(
            f"{server.url}/v1/chat/completions?q=hidden-query",
            json={"messages": [{"role": "user", "content": "hidden-text"}], "max_tokens": 4},
            headers={"authorization": f"Bearer {server.api_key}"},
            timeout=120,
        ).raise_for_status()
        server.stop()
    lines = [json.loads(one) for one in server.output.splitlines() if one.startswith("{")]
    (turn,) = [one for one in lines if one["event"] == "turn ended"]
    (request,) = [one for one in lines if one.get("path") == "/v1/chat/completions"]

    assert "/v1/chat/completions" in server.output
    assert "hidden-" not in server.output
    assert turn["request_id"] == request["request_id"] == answer.headers["x-request-id"]
    assert turn["turn"]["response_id"].startswith("resp_")
    assert turn["turn"]["output_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert server.api_key not in server.output


def test_the_doctor_says_what_would_be_served(migrated: Path):
    told = run_command(migrated, "doctor")

    assert "chat template: stable: turns stay warm" in told
    assert "calls of functions: the model's chat template declares no functions" in told
    assert "first differing token" not in told
    assert "database: at the right revision" in told
    assert re.search(r"^parked on disk: 0 of [1-9][\d,]* MiB$", told, re.MULTILINE)
    assert "sk-kw-test" not in told
