"""Where the shipped data lies, and where new files go.

There are three cases. The environment variable `ENVACE_ROOT` names a folder that holds `data/`; or the package lies in
the project's checkout; or it was installed from a wheel, which carries the data inside the package. In the last case
nothing is written there: figures, checkpoints and new records go below the current folder.
"""

import os
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


class CheckoutError(RuntimeError):
    """Something needs the files of the project's checkout; the message says so in one line."""


def is_checkout(folder: Path) -> bool:
    """Whether a folder is this project's own: its pyproject.toml has our name, and the data lies beside it."""
    try:
        about = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        return about["project"]["name"] == "envace_lite" and (folder / "data" / "base").is_dir()
    except (OSError, ValueError, KeyError, TypeError):  # no such file, or one of another kind
        return False


def find(package: Path, named: str | None, here: Path) -> tuple[Path, Path]:
    """The folder below which new files go, and the folder of the shipped data.

    Args:
        package: the folder of this package.
        named: what the environment variable says, if it is set.
        here: the current folder.
    """
    if named:
        return Path(named), Path(named) / "data"
    if is_checkout(package.parent):
        return package.parent, package.parent / "data"
    return here, package / "data"


ROOT, DATA = find(PACKAGE, os.environ.get("ENVACE_ROOT"), Path.cwd())
"""The folder below which new files go, and the folder of the shipped data."""
BASE = DATA / "base"
REHEARSED = DATA / "rehearsed"
"""The base after world rehearsal on all domains (seed 0)."""
SHIPPED_RUNS = DATA / "runs"
"""The records that come with the project."""
RUNS = ROOT / "data" / "runs"
"""Where new records go. In a checkout the shipped ones lie there too."""
PACKAGED = RUNS != SHIPPED_RUNS
"""Whether the data comes from inside the package, so that shipped and new records lie in two folders."""
FIGURES = ROOT / "figures"
WORK = ROOT / ".work"
"""Checkpoints of unfinished runs; not part of the project's history."""


def task_file(domain: str, split: str) -> Path:
    """The shipped tasks of a domain: `train`, `test` or `held_out`."""
    return DATA / "tasks" / f"{domain}.{split}.jsonl"


def need_checkout(what: str) -> None:
    """Refuse what works on the course's notebooks where there are none.

    Raises:
        CheckoutError: saying what to do.
    """
    if not (is_checkout(ROOT) and (ROOT / "notebooks").is_dir()):
        raise CheckoutError(
            f"{what} needs a checkout of the project, with its notebooks, and {ROOT} is none; "
            "clone the project and run the command there, or let ENVACE_ROOT name your clone"
        )
