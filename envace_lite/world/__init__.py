"""The toy domains and their registry."""

from envace_lite.world.bank import Bank
from envace_lite.world.domain import Domain, EpisodeResult, Session
from envace_lite.world.errands import Errands
from envace_lite.world.home import Home
from envace_lite.world.orders import Orders
from envace_lite.world.task import Outcome, Task, TaskFileError, load_tasks, save_tasks
from envace_lite.world.toy import NO_TOOL, UNKNOWN, ToyDomain
from envace_lite.world.trap import Trap

DOMAINS: dict[str, ToyDomain] = {d.name: d for d in (Home(), Orders(), Errands(), Bank())}
"""The toy domains that tasks are shipped for, and toy domains that you `register`."""
TRAP = Trap()
"""The domain of the simpler world; its tasks are drawn when they are needed (see `world.trap`)."""


_OTHERS: dict[str, Domain] = {}
"""Registered domains of other kinds."""


class UnknownDomain(KeyError):
    """There is no domain of this name; the message names those that exist."""


def get_domain(name: str) -> Domain:
    """A domain of the registry by its name.

    Raises:
        UnknownDomain: (a `KeyError`) naming the domains that exist.
    """
    known = {**DOMAINS, TRAP.name: TRAP, **_OTHERS}
    if name not in known:
        raise UnknownDomain(f"unknown domain {name!r}; there are: {', '.join(known)}; `register` adds one")
    return known[name]


def get_toy_domain(name: str) -> ToyDomain:
    """A toy domain by its name, for what only such a domain can do.

    Raises:
        UnknownDomain: there is none of this name, or it is no toy domain.
    """
    domain = get_domain(name)
    if not isinstance(domain, ToyDomain):
        raise UnknownDomain(f"{name!r} is no toy domain, and this works with those alone")
    return domain


def register(domain: Domain) -> None:
    """Add a domain of your own to the registry. One of the same name is replaced.

    Raises:
        ValueError: a toy domain has this name, and the new one is none: its shipped tasks would mean another world.
    """
    if isinstance(domain, ToyDomain):
        DOMAINS[domain.name] = domain
    elif domain.name in (*DOMAINS, TRAP.name):
        raise ValueError(f"there is a toy domain {domain.name!r}; give yours another name")
    else:
        _OTHERS[domain.name] = domain


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
    "ToyDomain",
    "UnknownDomain",
    "get_domain",
    "get_toy_domain",
    "load_tasks",
    "register",
    "save_tasks",
]
