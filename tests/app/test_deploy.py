"""What `docs/deploy` shows: figures, settings and commands that there are."""

import json
import re
from pathlib import Path

import pytest

from app.__main__ import main
from app.settings import SETTINGS
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
