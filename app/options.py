"""What each setting may be: its type, its rules, the sentence that the tables show, and the fix.

Plain annotations; how a value is read and where it goes is `app.settings`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1024
"""Characters. No rules of composition: length is what counts."""
SHORTEST_API_KEY = 20
"""Characters of a key that an operator makes up: it is hashed without salt, so it must be long."""

_DATABASES = r"^(sqlite(\+aiosqlite)?:///.+|postgres(ql|ql\+asyncpg)?://.+)"
_ADDRESS = r"^[^@\s]+@[^@\s]+$"
_ISSUER = r"^(https://|http://(localhost|127\.0\.0\.1|\[::1\])([:/]|$))[^\s?#]*$"
"""What it says decides who comes in, so it is not asked over a network in plain text."""
_ROLES = r"^[^,=]+=(admin|auditor|member)(,[^,=]+=(admin|auditor|member))*$"
_DOMAINS = r"^(\*|[^\s@,*]+(\s*,\s*[^\s@,*]+)*)$"


def about(
    sentence: str, *, fix: str, unit: str = "", default: str = "", **rules: Any
) -> msgspec.Meta:
    """What a setting says of itself (`default` in words, where it is not plain), and its rules."""
    extra = {"fix": fix, "unit": unit, "default": default}
    return msgspec.Meta(description=sentence, extra=extra, **rules)


Host = Annotated[
    str,
    about(
        "Address to listen on.",
        fix="use an address such as 127.0.0.1 or 0.0.0.0",
        pattern=r"^\S+$",
    ),
]
Port = Annotated[
    int, about("Port to listen on.", fix="use a number from 1 to 65535", ge=1, le=65535)
]
PublicUrl = Annotated[
    str,
    about(
        "Address that people type, where it is another (a proxy, a home network). It decides "
        "which Host and Origin are ours; over https, cookies are Secure.",
        fix="use scheme, host and port only, such as https://chat.example.org",
        default="http://HOST:PORT",
    ),
]
Proxies = Annotated[
    str,
    about(
        "Proxies, separated by commas, whose X-Forwarded-For is believed, so that attempts to "
        "sign in count against the visitor.",
        fix="use addresses separated by commas",
    ),
]
DataDir = Annotated[
    Path, about("Folder for the database and the converted model.", fix="name a folder")
]
DatabaseUrl = Annotated[
    str,
    about(
        "SQLite file or PostgreSQL database.",
        fix="use sqlite:///file or postgresql://user:password@host/name",
        default="sqlite:///DATA_DIR/keepwarm.db",
        pattern=_DATABASES,
    ),
]
Model = Annotated[
    str,
    about(
        "Folder of safetensors, GGUF file or hub name; `default` is the packaged SmolLM2.",
        fix="name a folder, a file or a hub name",
    ),
]
KvMemory = Annotated[
    int,
    about(
        "Memory for keeping conversations warm.",
        fix="use at least 1MiB, written like 512MiB or 2GiB",
        unit="bytes, or with KiB, MiB or GiB",
        default="a quarter of what is free, at most 2GiB; on a GPU what the model leaves",
        ge=2**20,
    ),
]
ParkMemory = Annotated[
    int,
    about(
        "Memory for KV that had to leave the cache; worth it where the cache is a GPU's.",
        fix="use 0 for none, or a size such as 512MiB",
        unit="bytes, or with KiB, MiB or GiB",
        default="`0`",
        ge=0,
    ),
]
ParkDisk = Annotated[
    int,
    about(
        "Space below the data folder for KV that had to leave the cache, and for all of it when "
        "the server stops: conversations stay warm over a restart.",
        fix="use 0 for none, or a size such as 4GiB",
        unit="bytes, or with KiB, MiB or GiB",
        default="four times the KV memory, at least 4GiB, at most a tenth of what is free",
        ge=0,
    ),
]
Deterministic = Annotated[
    bool,
    about(
        "`1`: the same conversation gives the same tokens bit for bit, cached or not, whatever "
        "runs beside it. Slower: 1.2 times with four conversations at a time, 3 where torch computes.",
        fix="use 0 or 1",
        default="`0`",
    ),
]
PinnedShare = Annotated[
    float,
    about(
        "How much of that memory may be kept for conversations that are open or chosen to be kept "
        "warm, and for personas and documents in use; the rest is free for whatever comes.",
        fix="use a number from 0 to 1",
        unit="share",
        ge=0,
        le=1,
    ),
]
PinnedSharePerUser = Annotated[
    float,
    about(
        "How much of that memory may be kept so for one user.",
        fix="use a number from 0 to 1",
        unit="share",
        ge=0,
        le=1,
    ),
]
RequestsPerDay = Annotated[
    int,
    about(
        "How many turns a user may ask for on a day of UTC. This and what follows hold where "
        "nothing else is said of the user or their groups (docs/quotas.md).",
        fix="use a positive number",
        default="no limit",
        ge=1,
    ),
]
TokensPerDay = Annotated[
    int,
    about(
        "How many tokens may be computed and generated for a user on a day of UTC.",
        fix="use a positive number",
        default="no limit",
        ge=1,
    ),
]
GenerationsPerUser = Annotated[
    int,
    about(
        "How many answers may be written for one user at once.",
        fix="use a positive number",
        default="no limit",
        ge=1,
    ),
]
SocketsPerUser = Annotated[
    int,
    about("How many sockets one user may have open.", fix="use a positive number", ge=1),
]
StoredPerUser = Annotated[
    int,
    about(
        "How much text one user may have stored.",
        fix="use a size such as 512MiB",
        unit="bytes, or with KiB, MiB or GiB",
        default="no limit",
        ge=1,
    ),
]
KeptWarmPerUser = Annotated[
    int,
    about(
        "How much KV one user may choose to keep warm.",
        fix="use 0 for none, or a size such as 512MiB",
        unit="bytes, or with KiB, MiB or GiB",
        default="no limit",
        ge=0,
    ),
]
SocketsPerAddress = Annotated[
    int,
    about(
        "How many sockets may be open from one address; behind a proxy that is not trusted all "
        "visitors have one.",
        fix="use a positive number",
        ge=1,
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    about("Number format of weights and cache.", fix="use auto, float32 or bfloat16"),
]
KvDtype = Annotated[
    Literal["auto", "fp8"],
    about(
        "What the cache keeps: `auto`, KV as it is computed, or `fp8`, rounded to 8 bits, so that "
        "twice as much fits; torch alone reads that (docs/cache.md).",
        fix="use auto or fp8",
    ),
]
Kernels = Annotated[
    Literal["auto", "native", "flash", "torch"],
    about(
        "What computes: on a CPU `native`, kernels that are built at start with the machine's C++ "
        "compiler; on a GPU `flash`, attention by an installed flash-attn package; `torch`; or "
        "`auto`, whichever of the others can, else torch.",
        fix="use auto, native, flash or torch",
    ),
]
TensorParallel = Annotated[
    int,
    about(
        "GPUs of this machine that share the model, each with a part of every layer's heads and of "
        "every conversation's KV; `KEEPWARM_KV_MEMORY` is then what each gives.",
        fix="use a number that divides the model's KV heads, or 1",
        ge=1,
    ),
]
Weights = Annotated[
    Literal["auto", "file", "dtype"],
    about(
        "What steps of few tokens multiply with: `file`, the 4-bit and 8-bit groups of a GGUF file "
        "exactly as it has them; `dtype`, weights rounded to that; or `auto`, the file's where "
        "native kernels serve and float32 is not asked for. Longer steps round: these weights to "
        "bfloat16, or on a CPU without AVX-512 what is multiplied with them to 8 bits.",
        fix="use auto, file or dtype",
    ),
]
PrefixIndex = Annotated[
    Literal["radix", "hashed"],
    about(
        "How known prefixes are found: `radix`, a tree of runs, or `hashed`, a table of blocks. "
        "Both find the same.",
        fix="use radix or hashed",
    ),
]
Retention = Annotated[
    Literal["cost", "lru"],
    about(
        "What goes first: worth least (`cost`), or unused longest (`lru`).", fix="use cost or lru"
    ),
]
Titles = Annotated[
    bool,
    about(
        "`1`: after its first answer the model is asked for a conversation's title, in the "
        "background and while nothing else wants to compute; `0`: it is the first words.",
        fix="use 0 or 1",
        default="`1`",
    ),
]
Threads = Annotated[
    int,
    about(
        "Threads that the engine computes with.",
        fix="use a positive number",
        default="torch's choice",
        ge=1,
    ),
]
EnginePlace = Annotated[
    Literal["process", "local"],
    about(
        "Where the engine runs: `process`, one of its own, or `local`, in the server's.",
        fix="use process or local",
    ),
]
AdminEmail = Annotated[
    str,
    about(
        "Makes the first admin at start, where there is none, instead of the printed link.",
        fix="use an e-mail address",
        default="none",
        pattern=_ADDRESS,
    ),
]
AdminPassword = Annotated[
    str,
    about(
        "Password of that admin.",
        fix=f"use {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters",
        default="none",
        min_length=SHORTEST_PASSWORD,
        max_length=LONGEST_PASSWORD,
    ),
]
TracesUrl = Annotated[
    str,
    about(
        "OpenTelemetry collector that traces are sent to over HTTP: times, counts and ids, never "
        "text. Needs `pip install 'keepwarm[otel]'`.",
        fix="use an address such as http://127.0.0.1:4318",
        default="none",
        pattern=r"^https?://\S+$",
    ),
]
OwnApiKey = Annotated[
    str,
    about(
        "An API key that is let in, for scripts that start a server themselves.",
        fix=f"use {SHORTEST_API_KEY} or more characters without spaces",
        default="none",
        pattern=rf"^\S{{{SHORTEST_API_KEY},}}$",
    ),
]
OidcIssuer = Annotated[
    str,
    about(
        "OpenID provider by which people may sign in, exactly as it names itself.",
        fix="use the provider's https address, without /.well-known/...",
        default="none",
        pattern=_ISSUER,
    ),
]
OidcClientId = Annotated[
    str,
    about(
        "What the provider calls Keepwarm.",
        fix="use the client id that the provider gave",
        default="none",
        pattern=r"^\S+$",
    ),
]
OidcClientSecret = Annotated[
    str,
    about(
        "Secret that the provider gave with it.",
        fix="use the client secret that the provider gave",
        default="none",
        min_length=1,
    ),
]
OidcName = Annotated[
    str,
    about(
        "What the provider is called on the button: Sign in with ...",
        fix="use 1 to 40 characters",
        min_length=1,
        max_length=40,
    ),
]
OidcDomains = Annotated[
    str,
    about(
        "E-mail domains, separated by commas, whose people get an account when they first come by "
        "the provider; `*` for everybody whom it lets in. Without it only who is invited does.",
        fix="use domains such as example.org,example.com or *",
        default="none",
        pattern=_DOMAINS,
    ),
]
OidcRoleClaim = Annotated[
    str,
    about(
        "Claim by which the provider tells what somebody is, such as `groups`: one word or a list.",
        fix="use the claim's name",
        default="none",
        pattern=r"^\S+$",
    ),
]
OidcRoles = Annotated[
    str,
    about(
        "Which role follows from a word of that claim, separated by commas; the first that somebody "
        "has counts, at each sign-in by the provider, and who has none is a member.",
        fix="use pairs of a word and a role, such as operators=admin,finance=auditor",
        default="none",
        pattern=_ROLES,
    ),
]
