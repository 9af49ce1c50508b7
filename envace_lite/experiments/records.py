"""Records: each recorded run is one small JSON file in data/runs.

Every number that the project shows comes from such a record, and the command in it makes it again.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envace_lite.model.checkpoint import replacing
from envace_lite.world import paths


@dataclass(frozen=True)
class Kind:
    """A kind of record: what it holds besides name, date, versions, command and seed."""

    name: str
    keys: tuple[str, ...]


_STUDIED = ("title", "config", "totals")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("pretrain", ("config", "curve", "seconds", "tokens")),
        Kind("train", (*_STUDIED, "arm", "base", "domains", "curve", "observed", "rows", "probe")),
        Kind("trap", (*_STUDIED, "cell", "dial", "results")),
        Kind("demo", (*_STUDIED, "arm", "domains", "observed", "before", "scalar", "after")),
        Kind("deliberate", ("policy", "title", "domains", "config", "cells")),
        Kind("ranks", ("domains", "tasks", "success", "kendall_tau")),
        Kind("trust", ("policy", "title", "domains", "config", "results")),
        Kind("smoke", ("policy", "domain", "config", "said", "steps", "before", "after", "seconds")),
        Kind("controls", ("title", "base", "domains", "scalars", "rows", "probe")),
        Kind("audit", ("config", "domains", "true_response", "label", "label_calls")),
        Kind("bench", ("result",)),
        Kind("notebooks", ("cores", "seconds")),
        Kind("crowd", ("config", "cores", "load_before", "seconds")),
        Kind("installs", ("run", "resolved")),
        Kind("elsewhere", ("config", "cores", "processor", "settings")),
        Kind("disturbed", ("config", "runs", "tests_passed", "cells")),
        Kind("mutants", ("config", "files", "survivors", "minutes")),
    )
}
"""Every kind that this project records; records of other kinds may lie among them."""


class RecordError(ValueError):
    """A record is missing or broken, or cannot be written; the message names the file."""


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    packages = ("envace_lite", "torch", "transformers", "peft", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def write_record(name: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a record; the date and the versions are added. An interrupt leaves an earlier one whole.

    Raises:
        RecordError: when it cannot be written.
    """
    path = (folder or paths.RUNS) / f"{name}.json"
    stamped = {"name": name, "date": datetime.now(UTC).date().isoformat(), "versions": versions(), **record}
    text = _numbers_on_a_line(json.dumps(without_nan(stamped), indent=1, allow_nan=False)) + "\n"
    try:
        with replacing(path) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise RecordError(
            f"cannot write the record {path}: {error.strerror or error}; an earlier one is untouched"
        ) from error
    return path


def _numbers_on_a_line(text: str) -> str:
    """Indented JSON in which each list of numbers stands on one line."""
    return re.sub(r"\[\n([-+.\deE,\s]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def without_nan(value: Any) -> Any:
    """A copy without NaN, which other readers of JSON refuse: None stands for what could not be counted."""
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def record_files(folder: Path | None = None) -> dict[str, Path]:
    """The files of a folder's records, by name; without a folder, of those that are shipped and those made since.

    A new record stands for a shipped one of the same name.
    """
    shipped = [paths.SHIPPED_RUNS] if paths.PACKAGED and folder is None else []
    files = {path.stem: path for one in [*shipped, folder or paths.RUNS] for path in one.glob("*.json")}
    return dict(sorted(files.items()))


def read_records(folder: Path | None = None) -> list[dict[str, Any]]:
    """Every record in a folder, by name; without a folder, those that are shipped and those made since.

    Raises:
        RecordError: naming the file that is not a record.
    """
    return [read_record(path) for path in record_files(folder).values()]


def of_kind(kind: str, records: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Those of some records that are of one kind (see `KINDS`)."""
    return [record for record in records if record.get("kind") == KINDS[kind].name]


def read_record(path: Path) -> dict[str, Any]:
    """One record.

    Raises:
        RecordError: when the file is not a record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")
        kind = KINDS.get(record.get("kind", ""))
        if missing := [key for key in (kind.keys if kind else ()) if key not in record]:
            raise ValueError(f"one of the kind {record['kind']!r} has {', '.join(missing)}")
    except ValueError as error:
        raise RecordError(f"{path} is not a record ({error}); delete it and run its command again") from error
    return record
