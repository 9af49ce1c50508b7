"""The oldest versions that pyproject.toml allows, as exact constraints for pip: `python tests/floors.py > floors.txt`.

`make oldest` installs them and runs the tests. So that this can be done, each requirement is written `name>=version`,
with a version that exists. It runs with a bare Python, since it is needed before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


class FloorError(ValueError):
    """A requirement has no floor; the message names it."""


def floors(requirements: Sequence[str]) -> list[str]:
    """Exact constraints for requirements that have a lower bound and nothing else.

    Raises:
        FloorError: naming the requirement that has another form.
    """
    exact = []
    for requirement in requirements:
        found = re.fullmatch(r"([A-Za-z0-9._-]+)>=([0-9]+(?:\.[0-9]+)+)", requirement)
        if not found:
            raise FloorError(f"{requirement!r} is not of the form name>=version")
        exact.append(f"{found[1]}=={found[2]}")
    return exact


def read(path: Path = PYPROJECT) -> list[str]:
    """The constraints of a pyproject.toml: what the package needs, and what its tests need."""
    about = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return floors([*about["dependencies"], *about["optional-dependencies"]["test"]])


if __name__ == "__main__":
    try:
        print("\n".join(read()))
    except FloorError as error:
        sys.exit(f"floors.py: {error}")
