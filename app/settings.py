"""Settings: frozen, typed, read from the environment once, by `__main__`.

Each has a default, a unit and a sentence; the tables in `serve --help`, the README and
`docs/settings.md` are made from them. What is wrong is told all at once, with the fix. Nothing else
reads the environment, and what a value costs or means is known elsewhere.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import force_setattr

from app.errors import AppError
from app.options import (
    AdminEmail,
    AdminPassword,
    DatabaseUrl,
    DataDir,
    Deterministic,
    Dtype,
    EnginePlace,
    GenerationsPerUser,
    Host,
    KeptWarmPerUser,
    Kernels,
    KvDtype,
    KvMemory,
    Model,
    OidcClientId,
    OidcClientSecret,
    OidcDomains,
    OidcIssuer,
    OidcName,
    OidcRoleClaim,
    OidcRoles,
    OwnApiKey,
    ParkDisk,
    ParkMemory,
    PinnedShare,
    PinnedSharePerUser,
    Port,
    PrefixIndex,
    Proxies,
    PublicUrl,
    RequestsPerDay,
    Retention,
    SocketsPerAddress,
    SocketsPerUser,
    StoredPerUser,
    TensorParallel,
    Threads,
    Titles,
    TokensPerDay,
    TracesUrl,
    Weights,
)

PREFIX = "KEEPWARM_"
IGNORED = "KEEPWARM_BENCH_"
"""The benchmarks' own."""

_HIDDEN = ("admin_password", "api_key", "oidc_client_secret")
_TOGETHER = (
    ("KEEPWARM_ADMIN_EMAIL", "KEEPWARM_ADMIN_PASSWORD"),
    ("KEEPWARM_OIDC_ISSUER", "KEEPWARM_OIDC_CLIENT_ID", "KEEPWARM_OIDC_CLIENT_SECRET"),
    ("KEEPWARM_OIDC_ROLE_CLAIM", "KEEPWARM_OIDC_ROLES"),
)
"""All of these or none."""
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Made with arguments in tests, and by `from_env` for everybody else."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    public_url: PublicUrl = ""
    """Never empty once made: derived from host and port."""
    trusted_proxies: Proxies = "127.0.0.1"
    data_dir: DataDir = Path("data")
    database_url: DatabaseUrl = ""
    """Never empty once made: derived from the data folder."""
    model: Model = "default"
    kv_memory_bytes: KvMemory | None = None
    park_memory_bytes: ParkMemory = 0
    park_disk_bytes: ParkDisk | None = None
    deterministic: Deterministic = False
    pinned_share: PinnedShare = 0.8
    pinned_share_per_user: PinnedSharePerUser = 0.5
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
    kernels: Kernels = "auto"
    tensor_parallel: TensorParallel = 1
    weights: Weights = "auto"
    prefix_index: PrefixIndex = "radix"
    retention: Retention = "cost"
    titles: Titles = True
    threads: Threads | None = None
    engine: EnginePlace = "process"
    admin_email: AdminEmail | None = None
    admin_password: AdminPassword | None = None
    api_key: OwnApiKey | None = None
    requests_per_day: RequestsPerDay | None = None
    tokens_per_day: TokensPerDay | None = None
    generations_per_user: GenerationsPerUser | None = None
    sockets_per_user: SocketsPerUser = 32
    stored_per_user_bytes: StoredPerUser | None = None
    kept_warm_per_user_bytes: KeptWarmPerUser | None = None
    sockets_per_address: SocketsPerAddress = 512
    traces_url: TracesUrl | None = None
    oidc_issuer: OidcIssuer | None = None
    oidc_client_id: OidcClientId | None = None
    oidc_client_secret: OidcClientSecret | None = None
    oidc_name: OidcName = "single sign-on"
    oidc_domains: OidcDomains | None = None
    oidc_role_claim: OidcRoleClaim | None = None
    oidc_roles: OidcRoles | None = None

    def __post_init__(self) -> None:
        if not self.public_url:
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104
            force_setattr(self, "public_url", f"http://{host}:{self.port}")
        if not self.database_url:
            force_setattr(self, "database_url", f"sqlite:///{self.data_dir / 'keepwarm.db'}")

    def __repr__(self) -> str:
        values = ((setting, getattr(self, setting.field)) for setting in SETTINGS)
        return f"Settings({', '.join(f'{s.field}={s.shown(value)}' for s, value in values)})"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Raises `BadSetting` with all that is wrong. An empty variable counts as unset."""
        given = {
            name: value
            for name, value in environ.items()
            if name.startswith(PREFIX) and not name.startswith(IGNORED) and value
        }
        values: dict[str, object] = {}
        faults = [_unknown(name) for name in given if name not in _BY_VARIABLE]
        for setting in SETTINGS:
            if setting.variable in given:
                try:
                    values[setting.field] = setting.read(given[setting.variable])
                except ValueError:
                    faults.append(setting.fault(given[setting.variable]))
        faults += _unpaired(given)
        if faults:
            raise BadSetting(tuple(faults))
        return msgspec.convert(values, cls)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: the variable, its value where it may be shown, the fix."""

    variable: str
    value: str
    fix: str

    def __str__(self) -> str:
        return f"{self.variable} is {self.value}: {self.fix}"


class BadSetting(AppError):
    """The environment cannot be used; `faults` holds everything that is wrong with it."""

    code = "bad_setting"

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    variable: str
    default: str
    unit: str
    sentence: str
    fix: str
    field: str
    kind: Any
    """The field's annotated type."""

    @property
    def words(self) -> str:
        """The sentence with its unit."""
        return f"{self.sentence[:-1]} ({self.unit})." if self.unit else self.sentence

    def read(self, text: str) -> object:
        """The value behind the text. Raises `ValueError` (msgspec's errors are such)."""
        value = _READERS.get(self.field, str)(text)
        return msgspec.convert(value, self.kind, strict=False)

    def shown(self, value: object) -> str:
        if value is not None and self.field in _HIDDEN:
            return "(hidden)"
        within = re.sub(r"(://[^:/@]*:).*@", r"\1***@", repr(value))
        return re.sub(r"([?&]password=)[^&']*", r"\1***", within)

    def fault(self, text: str) -> Fault:
        return Fault(variable=self.variable, value=self.shown(text), fix=self.fix)


def settings_table() -> tuple[Setting, ...]:
    """Every setting, in the order in which the struct names them."""
    kinds = get_type_hints(Settings, include_extras=True)
    return tuple(_setting(field, kinds[field.name]) for field in msgspec.structs.fields(Settings))


def settings_markdown() -> str:
    """The table as it stands in the README and in `docs/settings.md`."""
    rows = (f"| `{s.variable}` | {s.default} | {s.words} |" for s in SETTINGS)
    return "\n".join(["| variable | default | |", "| --- | --- | --- |", *rows]) + "\n"


def _setting(field: msgspec.structs.FieldInfo, kind: Any) -> Setting:
    # Rules stand on the value itself, so a setting that may be absent is `Annotated[...] | None`.
    annotated = kind if hasattr(kind, "__metadata__") else kind.__args__[0]
    (meta,) = annotated.__metadata__
    return Setting(
        variable=PREFIX + field.name.removesuffix("_bytes").upper(),
        default=meta.extra["default"] or f"`{field.default}`",
        unit=meta.extra["unit"],
        sentence=meta.description,
        fix=meta.extra["fix"],
        field=field.name,
        kind=kind,
    )


def _unknown(name: str) -> Fault:
    known = [variable.removeprefix(PREFIX) for variable in _BY_VARIABLE]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
    fix = (
        f"did you mean {PREFIX}{near[0]}?"
        if near
        else "remove it; `keepwarm serve --help` lists all"
    )
    return Fault(variable=name, value="not a setting", fix=fix)


def _unpaired(given: Mapping[str, str]) -> list[Fault]:
    faults = []
    for names in _TOGETHER:
        missing = [name for name in names if name not in given]
        if len(missing) < len(names):
            fix = f"set {', '.join(names[:-1])} and {names[-1]} together"
            faults += [Fault(variable=name, value="not set", fix=fix) for name in missing]
    return faults


def _read_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:ib?)?b?", text.strip().lower())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _BYTES[match[2]])


def _read_url(text: str) -> str:
    url = urlsplit(text.rstrip("/"))
    plain = f"{url.scheme}://{url.netloc}"
    if url.scheme not in ("http", "https") or not url.hostname or text.rstrip("/") != plain:
        raise ValueError(text)
    if url.username is not None or url.port == 0:  # `port` itself raises when it is no number
        raise ValueError(text)
    return plain.lower()


def _read_folder(text: str) -> Path:
    return Path(text).expanduser()


_READERS: dict[str, Callable[[str], object]] = {
    "kv_memory_bytes": _read_bytes,
    "park_memory_bytes": _read_bytes,
    "park_disk_bytes": _read_bytes,
    "stored_per_user_bytes": _read_bytes,
    "kept_warm_per_user_bytes": _read_bytes,
    "public_url": _read_url,
    "data_dir": _read_folder,
}
SETTINGS = settings_table()
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}
