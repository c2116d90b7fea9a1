"""Settings: read once, refused all at once, shown in one table."""

from pathlib import Path

import msgspec
import pytest

from app.settings import SETTINGS, BadSetting, Settings
from tests.kit import settings as pages


def faults(**variables: str) -> dict[str, str]:
    """What is wrong with these variables, by name."""
    with pytest.raises(BadSetting) as refused:
        Settings.from_env({f"KEEPWARM_{name}": value for name, value in variables.items()})
    return {fault.variable.removeprefix("KEEPWARM_"): str(fault) for fault in refused.value.faults}


def test_an_empty_environment_is_enough():
    settings = Settings.from_env({"PATH": "/bin", "KEEPWARM_MODEL": ""})

    assert settings == Settings()
    assert settings.public_url == "http://127.0.0.1:8000"
    assert settings.database_url == "sqlite:///data/keepwarm.db"
    assert settings.model == "default"


def test_every_setting_is_read_from_its_variable():
    settings = Settings.from_env(
        {
            "KEEPWARM_HOST": "0.0.0.0",  # noqa: S104
            "KEEPWARM_PORT": "8443",
            "KEEPWARM_PUBLIC_URL": "https://Chat.example.org/",
            "KEEPWARM_TRUSTED_PROXIES": "10.0.0.1,10.0.0.2",
            "KEEPWARM_DATA_DIR": "/srv/keepwarm",
            "KEEPWARM_DATABASE_URL": "postgresql://u:p@h/d",
            "KEEPWARM_MODEL": "org/model",
            "KEEPWARM_KV_MEMORY": "1.5GiB",
            "KEEPWARM_PINNED_SHARE": "0.7",
            "KEEPWARM_PINNED_SHARE_PER_USER": "0.25",
            "KEEPWARM_DTYPE": "float32",
            "KEEPWARM_PREFIX_INDEX": "hashed",
            "KEEPWARM_RETENTION": "lru",
            "KEEPWARM_THREADS": "4",
            "KEEPWARM_ENGINE": "local",
            "KEEPWARM_ADMIN_EMAIL": "root@example.org",
            "KEEPWARM_ADMIN_PASSWORD": "12345678901",
            "KEEPWARM_API_KEY": "k" * 20,
            "KEEPWARM_OIDC_ISSUER": "http://localhost:3000/",
            "KEEPWARM_OIDC_CLIENT_ID": "keepwarm",
            "KEEPWARM_OIDC_CLIENT_SECRET": "hush",
            "KEEPWARM_OIDC_NAME": "Our House",
            "KEEPWARM_OIDC_DOMAINS": "example.org, example.com",
            "KEEPWARM_OIDC_ROLE_CLAIM": "groups",
            "KEEPWARM_OIDC_ROLES": "operators=admin,finance=auditor",
        }
    )

    assert {s.field for s in SETTINGS} == set(msgspec.structs.asdict(settings))
    assert settings == Settings(
        host="0.0.0.0",  # noqa: S104
        port=8443,
        public_url="https://chat.example.org",
        trusted_proxies="10.0.0.1,10.0.0.2",
        data_dir=Path("/srv/keepwarm"),
        database_url="postgresql://u:p@h/d",
        model="org/model",
        kv_memory_bytes=3 * 2**29,
        pinned_share=0.7,
        pinned_share_per_user=0.25,
        dtype="float32",
        prefix_index="hashed",
        retention="lru",
        threads=4,
        engine="local",
        admin_email="root@example.org",
        admin_password="12345678901",
        api_key="k" * 20,
        oidc_issuer="http://localhost:3000/",
        oidc_client_id="keepwarm",
        oidc_client_secret="hush",
        oidc_name="Our House",
        oidc_domains="example.org, example.com",
        oidc_role_claim="groups",
        oidc_roles="operators=admin,finance=auditor",
    )
    assert "hush" not in repr(settings)


@pytest.mark.parametrize("issuer", ["http://id.example.org", "http://localhost.evil.example", "id"])
def test_a_provider_is_not_asked_in_plain_text_over_a_network(issuer: str):
    assert "https" in faults(OIDC_ISSUER=issuer)["OIDC_ISSUER"]


def test_all_that_is_wrong_is_told_at_once_with_the_value_and_the_fix():
    found = faults(PORT="99999", DTYPE="int8", THREADS="many", PINNED_SHARE="1.1")

    assert found == {
        "PORT": "KEEPWARM_PORT is '99999': use a number from 1 to 65535",
        "DTYPE": "KEEPWARM_DTYPE is 'int8': use auto, float32 or bfloat16",
        "THREADS": "KEEPWARM_THREADS is 'many': use a positive number",
        "PINNED_SHARE": "KEEPWARM_PINNED_SHARE is '1.1': use a number from 0 to 1",
    }


def test_a_variable_that_is_no_setting_is_refused_with_the_nearest_name():
    found = faults(PROT="1", ZZZZ="1")

    assert "did you mean KEEPWARM_PORT?" in found["PROT"]
    assert "serve --help" in found["ZZZZ"]


def test_the_benchmarks_variables_are_theirs():
    assert Settings.from_env({"KEEPWARM_BENCH_PEERS": "all"}) == Settings()


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1048576", 2**20),
        ("2GiB", 2**31),
        ("512 MiB", 2**29),
        ("512m", 2**29),
        ("2048KiB", 2**21),
        ("0.5g", 2**29),
        ("1tib", 2**40),
    ],
)
def test_memory_is_written_as_people_write_it(text: str, amount: int):
    assert Settings.from_env({"KEEPWARM_KV_MEMORY": text}).kv_memory_bytes == amount


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KV_MEMORY", "1KiB"),
        ("KV_MEMORY", "-1GiB"),
        ("KV_MEMORY", "lots"),
        ("PUBLIC_URL", "chat.example.org"),
        ("PUBLIC_URL", "ftp://chat.example.org"),
        ("PUBLIC_URL", "https://chat.example.org/keepwarm"),
        ("PUBLIC_URL", "https://user@chat.example.org"),
        ("PUBLIC_URL", "https://chat.example.org:port"),
        ("PUBLIC_URL", "https://"),
        ("DATABASE_URL", "mysql://u:p@h/d"),
        ("DATABASE_URL", "keepwarm.db"),
        ("DATABASE_URL", "sqlite://"),
        ("THREADS", "0"),
        ("PORT", "0"),
        ("HOST", "a b"),
        ("API_KEY", "short"),
        ("API_KEY", "a key with spaces in it"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str):
    assert set(faults(**{name: value})) == {name}


def test_an_admin_needs_both_address_and_password():
    assert set(faults(ADMIN_EMAIL="root@example.org")) == {"ADMIN_PASSWORD"}
    assert set(faults(ADMIN_PASSWORD="a long password")) == {"ADMIN_EMAIL"}
    others = {"OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET"}
    assert set(faults(OIDC_ISSUER="https://id.example.org")) == others


def test_secrets_are_not_shown():
    settings = Settings(
        database_url="postgresql://user:se:cr/et@h/d",
        admin_email="root@example.org",
        admin_password="hush password",
        api_key="hush" * 5,
        oidc_client_secret="hush",
    )
    refused = faults(API_KEY="secret", ADMIN_PASSWORD="secret", DATABASE_URL="x://u:secret@h")

    assert "se:cr" not in repr(settings)
    assert "hush" not in repr(settings)
    assert "user:***@h/d" in repr(settings)
    assert "secret" not in "".join(refused.values())
    in_query = Settings(database_url="postgresql://h/d?user=u&password=hush&ssl=require")
    assert "hush" not in repr(in_query)
    assert "password=***&ssl=require" in repr(in_query)


def test_an_ipv6_wildcard_is_reached_by_loopback():
    assert Settings(host="::").public_url == "http://[::1]:8000"


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_the_pages_show_the_settings_as_they_are(path: Path):
    page = path.read_text()

    assert pages.render(page) == page, "run `make golden`"
    assert all(setting.variable in page for setting in SETTINGS)
