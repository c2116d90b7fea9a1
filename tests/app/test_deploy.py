"""What `docs/deploy` shows: figures, settings and commands that there are."""

import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app import asgi, service
from app.__main__ import main
from app.chat import supervisor
from app.routes.gate import Hosts
from app.routes.health import public_handlers
from app.settings import SETTINGS, Settings
from engine.remote import Care
from tests.kit import metrics
from tests.kit.server import ROOT

DEPLOY = ROOT / "docs" / "deploy"
PROCESS = {"process_resident_memory_bytes"}
"""The client library's own."""


def queries() -> list[str]:
    """Each that the dashboard asks, and those that the page about metrics shows."""
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + re.findall(r"\| `([^`]*rate\(.*)` \|$", metrics.PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("query", queries())
def test_a_query_asks_for_series_and_labels_that_there_are(query: str):
    labels: dict[str, set[str]] = {}
    for sample in (sample for family in metrics.families() for sample in family.samples):
        labels.setdefault(sample.name, set()).update(sample.labels)

    asked = set(re.findall(r"\b(?:keepwarm|gen_ai|process)_\w+", query)) - PROCESS
    by = {one for group in re.findall(r"by \(([^)]*)\)", query) for one in group.split(", ")}
    by |= set(re.findall(r"[{,]\s*(\w+)!?=", query))

    assert asked <= set(labels)
    for series in asked:
        assert by <= labels[series] or not by & labels[series]
    assert by <= set().union(*(labels[series] for series in asked))


def test_the_dashboard_lays_out_its_panels_one_beside_the_other():
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]

    places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels}
    assert len(places) == len({one["id"] for one in panels}) == len(panels)


@pytest.mark.parametrize("file", sorted(DEPLOY.iterdir()), ids=lambda one: one.name)
def test_an_example_names_settings_and_commands_that_there_are(file: Path):
    words = file.read_text()

    assert set(re.findall(r"KEEPWARM_[A-Z_]+", words)) <= {one.variable for one in SETTINGS}
    assert set(re.findall(r'\bkeepwarm"?,? "?(serve|migrate|backup|restore)\b', words)) <= set(
        main.commands
    )
    for made in re.findall(r"\bmake ([a-z ]+)\b", words):
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(made.split()) <= set(targets)


# ---------------------------------------------------------------- what systemd and a container are told

LONGEST_STOP_S = service.GRACE_S + supervisor.INTERRUPT_S + asgi.CLOSING_S + 2 * Care().closing_s
"""Answers end or are cut off, sockets close, the engine parks, and is asked once more to go."""


def unit() -> list[tuple[str, str]]:
    """The unit's directives in their order; some come more than once."""
    lines = (DEPLOY / "keepwarm.service").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


def containerfile(word: str) -> list[str]:
    """What stands behind an instruction, in the last stage."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    stage = text[text.rindex("\nFROM ") :].splitlines()
    return [line.removeprefix(f"{word} ") for line in stage if line.startswith(f"{word} ")]


def starts(command: list[str]) -> None:
    """Ours, with a command that there is and the options that it takes."""
    program, name, *options = command
    assert Path(program).name == "keepwarm"
    main.commands[name].make_context(name, options)


def test_the_unit_starts_a_server_in_the_folder_that_systemd_makes_for_it():
    told = dict(unit())
    environment = dict(value.split("=", 1) for name, value in unit() if name == "Environment")
    settings = Settings.from_env(environment)

    starts(shlex.split(told["ExecStart"]))
    assert settings.data_dir == Path("/var/lib") / told["StateDirectory"]
    assert Path(environment["HF_HOME"]).is_relative_to(settings.data_dir)
    assert told["ProtectSystem"] == "strict", "nothing else can be written"
    assert float(told["TimeoutStopSec"]) >= LONGEST_STOP_S
    assert told["KillMode"] == "mixed", "the engine is told by its parent, when answers have ended"


def test_the_container_serves_where_its_check_asks_and_its_volume_is():
    environment = dict(pair.split("=", 1) for line in containerfile("ENV") for pair in line.split())
    settings = Settings.from_env(environment)
    (health,), (command,) = containerfile("HEALTHCHECK"), containerfile("CMD")
    asked = urlsplit(re.findall(r"http://[^']+", health)[0])
    run = re.findall(r"^# docker run (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    (stop_timeout,) = re.findall(r"--stop-timeout (\d+)", run[0])

    starts(json.loads(command))
    assert containerfile("VOLUME") == [str(settings.data_dir)]
    assert Path(environment["HF_HOME"]).is_relative_to(settings.data_dir)
    assert containerfile("EXPOSE") == [str(settings.port)] == [str(asked.port)]
    assert Hosts(settings).knows(asked.netloc)
    assert asked.path in {path for one in public_handlers for path in one.paths}
    assert f"-p {settings.port}:{settings.port} " in run[0]
    assert f":{settings.data_dir} " in run[0]
    assert float(stop_timeout) >= LONGEST_STOP_S
