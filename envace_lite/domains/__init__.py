"""The four toy domains and their registry."""

from envace_lite.domains.base import (
    NO_TOOL,
    UNKNOWN,
    Domain,
    Outcome,
    Session,
    Task,
    TaskFileError,
    Verdict,
    load_tasks,
    save_tasks,
)
from envace_lite.domains.delivery import Delivery
from envace_lite.domains.finance import Finance
from envace_lite.domains.functions import Functions
from envace_lite.domains.retail import Retail

DOMAINS: dict[str, Domain] = {d.name: d for d in (Functions(), Retail(), Delivery(), Finance())}


class UnknownDomain(KeyError):
    """There is no domain of this name; the message names those that exist."""


def get_domain(name: str) -> Domain:
    """A domain of the registry by its name.

    Raises:
        UnknownDomain: (a `KeyError`) naming the domains that exist.
    """
    if name not in DOMAINS:
        raise UnknownDomain(f"unknown domain {name!r}; there are: {', '.join(DOMAINS)}")
    return DOMAINS[name]


def register(domain: Domain) -> None:
    """Add a domain of your own to the registry."""
    DOMAINS[domain.name] = domain


__all__ = [
    "DOMAINS",
    "NO_TOOL",
    "UNKNOWN",
    "Domain",
    "Outcome",
    "Session",
    "Task",
    "TaskFileError",
    "UnknownDomain",
    "Verdict",
    "get_domain",
    "load_tasks",
    "register",
    "save_tasks",
]
