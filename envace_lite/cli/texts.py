"""The tables that the project's texts show: each stands between marks, and is written there from the records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from envace_lite.course.installs import installs_table, settings_table
from envace_lite.course.timing import crowd_table, minutes_table
from envace_lite.experiments import bench, deliberate_tables, tables
from envace_lite.experiments.arms import load_records
from envace_lite.experiments.audit import audit_table
from envace_lite.experiments.records import of_kind
from envace_lite.experiments.trap import trap_table
from envace_lite.experiments.trust import trust_table


def _timed(table: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    return lambda: "\n".join(table(r["result"]) for r in of_kind("bench", load_records()))


TABLES: dict[str, Callable[[], str]] = {
    "front": tables.front_table,
    "audit": lambda: audit_table(load_records()),
    "results": tables.main_tables,
    "gain": tables.gain_tables,
    "demo": tables.demo_tables,
    "details": tables.detail_tables,
    "worlds": tables.world_tables,
    "probe": tables.probe_tables,
    "ranks": lambda: tables.ranks_table(load_records()),
    "trust": lambda: tables.markdown(trust_table(load_records()).T),
    "trap": lambda: trap_table(load_records()),
    "rehearsal": lambda: deliberate_tables.short_table(load_records()),
    "deliberation": lambda: deliberate_tables.tables(load_records()),
    "minutes": lambda: minutes_table(load_records()),
    "crowd": lambda: crowd_table(load_records()),
    "installs": lambda: installs_table(load_records()),
    "settings": lambda: settings_table(load_records()),
    "speed": _timed(bench.ratios_table),
    "growth": _timed(bench.growth_table),
    "profile": _timed(bench.profile_tables),
}
"""Every table by the name of its marks, `<!-- NAME:START -->` and `<!-- NAME:END -->`."""


class TableError(ValueError):
    """A text asks for a table that does not exist; the message names those that do."""


def fill(text: str, known: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """Write each table between its marks, `<!-- NAME:START -->` and `<!-- NAME:END -->`.

    Raises:
        TableError: naming the tables that exist.
    """

    def filled(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in known:
            raise TableError(f"there is no table {name!r}; there are: {', '.join(known)}")
        return f"<!-- {name}:START -->\n{known[name]()}\n<!-- {name}:END -->"

    return re.sub(r"<!-- (\w+):START -->.*?<!-- \1:END -->", filled, text, flags=re.S)
