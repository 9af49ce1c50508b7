"""Settings and fixtures of all tests."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from envace_lite import rollout
from envace_lite.model import decoding
from envace_lite.model.language import GIVEN
from envace_lite.model.policy import Family, Policy, new_policy
from envace_lite.world import Task
from helpers import CHAT, conversation, find_task

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Reaching for the network is an error; a server of the test's own, on this machine, is none."""

    def only_here(connect: Any) -> Any:
        def guarded(self: socket.socket, address: Any) -> Any:
            assert address[0] == "127.0.0.1", f"a test reached for the network: {address}"
            return connect(self, address)

        return guarded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", only_here(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", only_here(socket.socket.connect_ex))
        yield


LEAST_LEAD = 1e-3
"""By so much log-probability each greedy token of a test leads the second one. Another processor rounds otherwise."""
SAMPLING = {"decoding", "evaluate", "fidelity", "gate", "pages", "rehearsal", "rollout", "widgets"}
"""The modules whose assertions rest on tokens that a policy chooses: they run under each setting of `elsewhere`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that sample."""
    for item in items:
        if item.path.stem.removeprefix("test_") in SAMPLING:
            item.add_marker(pytest.mark.samples)


@pytest.fixture(autouse=True)
def clear_choices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test must not rest on a greedy token that leads the second one by next to nothing.

    A test that holds whichever tokens are chosen says so by the marker `any_tokens`.
    """
    leads = []

    def watched(logits: Any, temperature: float, generator: Any) -> Any:
        if temperature == 0:
            best = logits.log_softmax(-1).topk(2, dim=-1).values
            leads.append((best[:, 0] - best[:, 1]).min().item())
        return usual(logits, temperature, generator)

    usual = decoding.sample
    for module in (decoding, rollout):
        monkeypatch.setattr(module, "sample", watched)
    yield
    if min(leads, default=1.0) < LEAST_LEAD and not request.node.get_closest_marker("any_tokens"):
        pytest.fail(f"a greedy token leads the second one by {min(leads):.1e} only, less than {LEAST_LEAD:g}")


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    """What one test drew must not be found by another."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def tiny() -> Policy:
    """A tiny policy with random weights; tests that change it take a copy (`helpers.copied`)."""
    return new_policy(width=32, layers=2, heads=2)


@pytest.fixture(scope="session")
def lessons() -> list[tuple[Task, list[dict[str, Any]]]]:
    """Tasks of each kind, with a conversation that solves each on the real environment."""
    tasks = [
        find_task("home", "no_tool"),
        find_task("orders", "turns:2", "calls:3", "error"),
        find_task("errands", "choose"),
        find_task("bank", "reach", "calls:2"),
        find_task("bank", "error", "instructions", "calls:2"),
        find_task("errands", "rests:left", "calls:2"),
    ]
    parallel = find_task("home", "parallel", "calls:2")
    return [
        (parallel, conversation(parallel, together=True)),
        *((task, conversation(task)) for task in tasks),
    ]


@pytest.fixture(scope="session")
def apt(lessons: list[tuple[Task, list[dict[str, Any]]]]) -> Policy:
    """A tiny policy that knows the lessons almost by heart: greedy it makes no mistake, sampled it makes some."""
    policy = new_policy(width=32, layers=2, heads=2)
    families, roles = [], []
    for task, messages in lessons:
        prompt, ids = CHAT.render(task.messages, task.tools, prompt="act"), CHAT.render(messages, task.tools)
        families.append(Family(prompt, [ids[len(prompt) :]]))
        roles += CHAT.role_ids(ids)[len(prompt) :]
    imitated = torch.tensor(roles) != GIVEN
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=1e-2)
    for _ in range(200):
        log_p, _ = policy.backward(families, lambda log_p, _, where: -log_p[imitated[where]].mean())
        optimizer.step()
        if log_p[imitated].mean() > -0.03:
            break
    return policy
