"""What a user installs: the wheel, in an environment that has never seen this checkout."""

import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement

from tests.kit.server import Server, free_port, new_folder, server_environment

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with the wheel in it.

    The dependencies are borrowed from this environment by path, which leaves out this checkout:
    an editable project is found through a file that is read only where it is installed.
    """
    folder = tmp_path_factory.mktemp("bare")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    (wheel,) = folder.glob("keepwarm-*.whl")
    pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin"


@pytest.mark.long
def test_the_wheel_serves_its_page_from_a_bare_environment(bare: Path, tmp_path: Path):
    folder, port = new_folder(), free_port()
    environment = server_environment(folder, port)
    command: dict[str, Any] = {"env": environment, "cwd": tmp_path}
    where = [str(bare / "python"), "-c", "import app; print(app.__path__[0])"]
    found = subprocess.run(where, **command, check=True, capture_output=True, text=True)
    subprocess.run([bare / "keepwarm", "migrate"], **command, check=True)

    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([bare / "keepwarm", "serve"], **command, stdout=log, stderr=log)
    with Server(process, port, folder) as server:
        server.wait_until_ready()
        page = httpx.get(server.url, timeout=60)
        script = httpx.get(server.url + page.text.split('src="')[1].split('"')[0], timeout=60)
        assert server.stop() == 0

    assert str(ROOT) not in found.stdout
    assert "<title>Keepwarm" in page.text
    assert script.status_code == 200


def test_every_declared_dependency_is_among_the_pinned_ones():
    pinned = {line.split("==")[0] for line in (ROOT / ".lock" / "run.txt").read_text().splitlines()}
    declared = {Requirement(line) for line in requires("keepwarm") or ()}

    wanted = {one.name for one in declared if one.marker is None} - {"torch"}
    assert wanted <= pinned
