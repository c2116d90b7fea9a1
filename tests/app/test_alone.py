"""One process serves a data folder: a second is refused, and more than one cannot be asked for."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from tests.kit.server import ROOT, Server, free_port, server_environment, start_server


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """A server of a machine on which somebody set what web servers read as a number of workers."""
    with start_server(WEB_CONCURRENCY="4") as server:
        yield server


def serve_too(folder: Path, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Another `keepwarm serve`, which ought to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "app", "serve", *words],
        cwd=ROOT,
        env=server_environment(folder, free_port(), **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_second_server_of_a_folder_is_refused_and_the_first_goes_on_with_its_answer(
    alone: Server,
):
    """The second would sweep the turns that are live in the first."""
    with OpenAI(base_url=f"{alone.url}/v1", api_key=alone.api_key, max_retries=0) as client:
        endless = {"ignore_eos": True}
        stream = client.responses.create(
            input="Go on", stream=True, max_output_tokens=1500, extra_body=endless
        )
        begun = next(iter(stream))
        assert begun.type == "response.created"

        second = serve_too(alone.folder)
        after = client.responses.retrieve(begun.response.id)
        kinds = [event.type for event, _ in zip(stream, range(20), strict=False)]
        client.responses.cancel(begun.response.id)

    assert second.returncode == 1
    assert f"Another keepwarm serves {alone.folder / 'data'} already" in second.stdout
    assert "KEEPWARM_DATA_DIR" in second.stdout
    assert "Traceback" not in second.stdout
    assert after.status == "in_progress"
    assert "response.output_text.delta" in kinds


def test_a_server_is_one_process_with_one_engine_whatever_a_machine_says(alone: Server):
    children = psutil.Process(alone.pid).children(recursive=True)

    engines = [one for one in children if "engine" in one.cmdline()]
    servers = [one for one in children if "app" in one.cmdline()]
    assert (len(engines), len(servers)) == (1, 0)


@pytest.mark.parametrize("option", ["--workers", "--processes"])
def test_there_is_no_option_for_more_processes(tmp_path: Path, option: str):
    refused = serve_too(tmp_path, option, "2")

    assert refused.returncode == 2
    assert "No such option" in refused.stdout


def test_there_is_no_setting_for_more_processes(tmp_path: Path):
    refused = serve_too(tmp_path, KEEPWARM_WORKERS="2")

    assert refused.returncode == 1
    assert "KEEPWARM_WORKERS is not a setting" in refused.stdout
