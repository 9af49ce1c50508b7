"""The toy domains and their registry."""

from envace_lite.world.bank import Bank
from envace_lite.world.errands import Errands
from envace_lite.world.home import Home
from envace_lite.world.orders import Orders
from envace_lite.world.task import (
    NO_TOOL,
    UNKNOWN,
    Domain,
    EpisodeResult,
    Outcome,
    Session,
    Task,
    TaskFileError,
    load_tasks,
    save_tasks,
)
from envace_lite.world.trap import Trap

DOMAINS: dict[str, Domain] = {d.name: d for d in (Home(), Orders(), Errands(), Bank())}
"""The domains that tasks are shipped for, and those that you `register`."""
TRAP = Trap()
"""The domain of the simpler world; its tasks are drawn when they are needed (see `world.trap`)."""


class UnknownDomain(KeyError):
    """There is no domain of this name; the message names those that exist."""


def get_domain(name: str) -> Domain:
    """A domain of the registry by its name.

    Raises:
        UnknownDomain: (a `KeyError`) naming the domains that exist.
    """
    known = {**DOMAINS, TRAP.name: TRAP}
    if name not in known:
        raise UnknownDomain(f"unknown domain {name!r}; there are: {', '.join(known)}")
    return known[name]


def register(domain: Domain) -> None:
    """Add a domain of your own to the registry."""
    DOMAINS[domain.name] = domain


__all__ = [
    "DOMAINS",
    "NO_TOOL",
    "TRAP",
    "UNKNOWN",
    "Domain",
    "EpisodeResult",
    "Outcome",
    "Session",
    "Task",
    "TaskFileError",
    "UnknownDomain",
    "get_domain",
    "load_tasks",
    "register",
    "save_tasks",
]
