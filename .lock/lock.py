"""Writes run.txt and test.txt: the installed version of everything that pyproject.toml leads to.

torch is left out: where it comes from is the Makefile's `TORCH`, and its CUDA build brings packages
of its own.
"""

import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
LEFT_OUT = {"torch"}
BUILD = ["hatchling>=1.27", "editables"]
"""The editable installation builds without isolation, so that it needs no second download."""


def closure(requirements: Iterable[str]) -> dict[str, str]:
    """Name to version of the requirements and of everything they need here."""
    pinned: dict[str, str] = {}
    waiting = [(Requirement(line), "") for line in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT or (
            requirement.marker and not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        found = distribution(name)
        pinned[name] = found.version
        for wanted in ["", *requirement.extras]:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(Requirement(line), wanted) for line in found.requires or ()]
    return pinned


def write(path: Path, pinned: dict[str, str]) -> None:
    lines = [f"{name}=={version.split('+')[0]}\n" for name, version in sorted(pinned.items())]
    path.write_text("# Written by `make lock`.\n" + "".join(lines))


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    run = closure([*project["project"]["dependencies"], *groups["web"], *BUILD])
    test = closure(groups["test"])
    write(HERE / "run.txt", run)
    write(HERE / "test.txt", {name: test[name] for name in test.keys() - run.keys()})


if __name__ == "__main__":
    main()
