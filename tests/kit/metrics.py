"""Keeps docs/metrics.md in step with what `/metrics` tells: each name, its labels, its words.

`make golden` rewrites it.
"""

import re
from pathlib import Path

import msgspec
from prometheus_client import Metric

from app.chat.record import Record
from app.db.figures import DatabaseFigures
from app.routes.metrics import EngineCollector
from engine.kv.tiers import TierSizes
from tests.kit.desk import Desk, config
from tests.kit.echo import CARD

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
COUNTER = "_total"


def families() -> list[Metric]:
    """What an engine with all its tiers, a server and its database tell at their start."""
    desk = Desk(config(tiers=TierSizes(token_bytes=1, host_bytes=1, disk_bytes=1)))
    record = Record()
    record.expect("MODEL")
    card = msgspec.structs.replace(
        CARD, name="MODEL", dtype="DTYPE", device="DEVICE", attention="BACKEND"
    )
    return [
        *EngineCollector(card, desk.core.stats(), open_sockets=0).collect(),
        *record.registry.collect(),
        *DatabaseFigures().registry.collect(),
    ]


def render(page: str) -> str:
    """The page with the table between its two marks written anew."""
    rows = "".join(_row(family) for family in families())
    table = f"<!-- metrics -->\n| name | labels | what it counts |\n|---|---|---|\n{rows}"
    return re.sub(
        r"<!-- metrics -->.*<!-- /metrics -->",
        lambda _: table + "<!-- /metrics -->",
        page,
        flags=re.DOTALL,
    )


def _row(family: Metric) -> str:
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, {})[value] = None
    values.pop("le", None)
    labels = "; ".join(f"`{label}`: {', '.join(each)}" for label, each in values.items())
    name = family.name + (COUNTER if family.type == "counter" else "")
    kind = "" if family.type == "counter" else f" ({family.type})"
    return f"| `{name}`{kind} | {labels} | {family.documentation} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
