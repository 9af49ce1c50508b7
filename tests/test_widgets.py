"""Steppers and views: their data, what can be read without a kernel, and what the buttons do."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from envace_lite.course.steps import (
    Decision,
    Step,
    chosen,
    comparison_text,
    rollout_steps,
    step_html,
    step_text,
)
from envace_lite.course.widgets import BudgetSlider, Readable, SideBySide, Stepper, TrainingPlot
from envace_lite.fidelity import probe
from envace_lite.model.language import REHEARSE
from envace_lite.model.policy import Policy
from envace_lite.rollout import Execute, Rehearse, Trajectory, rollout
from envace_lite.world import Task
from helpers import open_session, real_exchanges

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def episode(apt: Policy, lessons: Any) -> Trajectory:
    """A rollout with an error in it, two user turns and five messages at least."""
    task = next(task for task, _ in lessons if task.domain == "orders")
    [trajectory] = rollout(apt, [task], Rehearse(), temperature=0)
    return trajectory


@pytest.fixture(scope="module")
def stepped(episode: Trajectory, apt: Policy) -> list[Step]:
    return rollout_steps(episode, apt.chat)


def test_the_steps_are_the_rollout_token_by_token(
    stepped: list[Step], episode: Trajectory, apt: Policy
) -> None:
    words = [token.word for step in stepped for token in step.tokens]
    assert words == apt.chat.decode([*episode.prompt, *episode.ids]).split()
    roles = [token.role for step in stepped[1:] for token in step.tokens]
    assert roles == [{0: "given", 1: "act", 2: "rehearse"}[role] for role in episode.roles]
    chances = [token.probability for step in stepped[1:] for token in step.tokens]
    for chance, role, log_p in zip(chances, episode.roles, episode.log_probs, strict=True):
        assert chance == (None if role == 0 else math.exp(log_p))


def test_each_step_is_one_message_of_one_role(stepped: list[Step], episode: Trajectory) -> None:
    assert all(step.tokens[-1].word == "<end>" for step in stepped[1:])
    by_role = [step.role for step in stepped[1:]]
    assert by_role.count("rehearse") == episode.outputs[REHEARSE] == len(episode.exchanges)
    assert by_role.count("given") == len(episode.task.later_turns) == 1


def test_the_real_response_is_that_of_the_same_call(stepped: list[Step], episode: Trajectory) -> None:
    answered = [step for step in stepped if step.call]
    assert [step.call for step in answered] == [call.text for call, _ in episode.exchanges]
    assert [step.written for step in answered] == [response.text for _, response in episode.exchanges]
    session = open_session(episode.task)
    assert [step.real for step in answered] == [session.call(call).text for call, _ in episode.exchanges]


def test_no_environment_is_asked_when_the_real_responses_are_not_wanted(
    episode: Trajectory, apt: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envace_lite.course.steps.get_domain", lambda _: pytest.fail("asked"))
    assert not any(step.real for step in rollout_steps(episode, apt.chat, real=False))


def test_an_injected_response_is_given(apt: Policy, episode: Trajectory) -> None:
    [executed] = rollout(apt, [episode.task], Execute(), temperature=0)
    answered = [step for step in rollout_steps(executed, apt.chat) if step.call]
    assert [(step.call, step.written) for step in answered] == real_exchanges(episode.task)
    assert {step.role for step in answered} == {"given"}


def test_a_message_that_was_cut_off_is_a_step(tiny: Policy, episode: Trajectory) -> None:
    [cut] = rollout(tiny, [episode.task], temperature=0, max_tokens=5)
    steps = rollout_steps(cut, tiny.chat)
    assert sum(len(step.tokens) for step in steps[1:]) == len(cut.ids)


def plain(html: str) -> str:
    """What is left of HTML without its styles."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


@pytest.mark.parametrize("render", [step_text, lambda step: plain(step_html(step))], ids=["text", "html"])
def test_roles_and_probabilities_can_be_read_without_colour(stepped: list[Step], render: Any) -> None:
    for step in stepped[1:]:
        shown = render(step)
        assert shown.lstrip().startswith(step.role)
        for token in step.tokens:
            chance = f" {token.probability:.2f}" if token.probability is not None else ""
            assert f"{token.role}{chance}" in shown
        assert "real response" in shown or not step.call


def test_a_response_that_differs_is_said_to_differ(stepped: list[Step]) -> None:
    step = next(s for s in stepped if s.call)
    wrong = replace(step, real="o9:lost error <b>")
    assert "(the same)" in step_text(step)
    assert "(not the same)" in step_text(wrong)
    assert "It is not the same" in step_html(wrong)
    assert "<mark>" in step_html(wrong)
    assert "&lt;b&gt;" in step_html(wrong), "what a model wrote is never markup"
    assert "<details>" in step_html(wrong)
    assert "details" not in step_html(wrong, real="hidden")
    assert "<details open>" in step_html(wrong, real="open")


def test_probabilities_can_be_left_out(stepped: list[Step]) -> None:
    assert not re.search(r"\d\.\d\d", step_text(stepped[1], probabilities=False))
    assert not re.search(r"> *\w+ \d\.\d\d", step_html(stepped[1], probabilities=False))


@pytest.fixture
def stepper(episode: Trajectory, apt: Policy) -> Stepper:
    return Stepper(episode, apt)


@pytest.fixture(scope="module")
def frames(apt: Policy, tiny: Policy, lessons: Any) -> dict[str, pd.DataFrame]:
    tasks: list[Task] = [task for task, _ in lessons if "no_tool" not in task.tags]
    single = [task for task in tasks if "parallel" not in task.tags]
    return {"apt": probe(apt, single), "tiny": probe(tiny, single)}


DECISIONS = {
    2: [
        Decision("pack_order o1", "o1:sent needs:paid error status", "refused", "revise"),
        Decision("refund_order o1", "o1:returned ok", "fine", "commit", "o1:returned error <i>"),
    ],
    0: [Decision("pack_order o1", "", "not rehearsed", "commit", "o1:sent needs:paid error status")],
}


def test_each_message_says_what_it_is(stepped: list[Step], episode: Trajectory, apt: Policy) -> None:
    [executed] = rollout(apt, [episode.task], Execute(), temperature=0)
    for step in [*stepped, *rollout_steps(executed, apt.chat)]:
        said = plain(step_html(step, "Step 9"))
        assert said.startswith(" Step 9, ")
        who = {"act": "the policy writes a call", "rehearse": "the policy writes what"}.get(step.role)
        if step.role == "given":
            who = (
                "brought, put before" if step.call else "reads before" if step.is_prompt else "user says next"
            )
        assert str(who) in said
        assert step.call in said


def every_widget(stepper: Stepper, frames: dict[str, pd.DataFrame]) -> list[Readable]:
    return [stepper, SideBySide(frames), BudgetSlider(DECISIONS), TrainingPlot(lambda *_: {})]


def test_each_widget_is_live_and_can_be_read_without_a_kernel(
    stepper: Stepper, frames: dict[str, pd.DataFrame]
) -> None:
    for widget in every_widget(stepper, frames):
        bundle = widget._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html", VIEW}
        assert repr(widget) == bundle["text/plain"]
        assert "<script" not in bundle["text/html"]
        assert "svg" not in bundle["text/html"]


def test_the_whole_rollout_stands_in_the_static_forms(stepper: Stepper) -> None:
    for form in (stepper.text, plain(stepper.html)):
        for place, step in enumerate(stepper.steps):
            assert f"Step {place + 1} of {len(stepper.steps)}" in form
            assert all(token.word in form.replace("&lt;", "<").replace("&gt;", ">") for token in step.tokens)
            assert step.real in form
        assert "Task success, by the label: 1" in form


def test_the_buttons_step_and_stop_at_both_ends(stepper: Stepper) -> None:
    last = len(stepper.steps)
    assert f"Step 1 of {last}" in stepper.view.value
    stepper.back.click()
    assert f"Step 1 of {last}" in stepper.view.value
    stepper.forth.click()
    assert f"Step 2 of {last}" in stepper.view.value
    for _ in range(last):
        stepper.forth.click()
    assert f"Step {last} of {last}" in stepper.view.value
    assert stepper.stop_reason in stepper.view.value
    stepper.back.click()
    assert f"Step {last - 1} of {last}" in stepper.view.value
    assert stepper.stop_reason not in stepper.view.value


def test_the_real_response_is_a_click_away(stepper: Stepper) -> None:
    stepper.move(next(i for i, step in enumerate(stepper.steps) if step.call))
    assert "real response" not in stepper.view.value
    stepper.reveal.value = True
    assert "<details open><summary>The real response" in stepper.view.value


def test_controls_have_labels_in_the_order_of_use(stepper: Stepper, frames: dict[str, pd.DataFrame]) -> None:
    labels = [control.description for control in stepper.children[0].children]
    assert labels == ["Previous step", "Next step", "Show the real response"]
    assert SideBySide(frames).children[0].description == "Show"
    assert BudgetSlider(DECISIONS).children[0].description == "Budget N"


def test_what_changes_is_read_out(stepper: Stepper, frames: dict[str, pd.DataFrame]) -> None:
    for widget in every_widget(stepper, frames):
        assert "aria-live='polite'" in widget.children[-1].value  # type: ignore[attr-defined]


def test_rows_of_a_comparison_can_be_chosen(frames: dict[str, pd.DataFrame]) -> None:
    first = frames["apt"]
    assert chosen(frames, "all") == list(range(len(first)))
    assert chosen(frames, "errors") == [i for i, error in enumerate(first.real_error) if error]
    assert chosen({"apt": first}, "differs") == [i for i, same in enumerate(first.exact) if not same]
    assert comparison_text(frames, []) == "no pair of this sort"


def test_side_by_side_shows_what_is_chosen(frames: dict[str, pd.DataFrame]) -> None:
    view = SideBySide(frames, limit=3)
    assert "differs:" in view.text
    assert "<mark>" in view.html
    assert view.html.count("<tr>") == 4
    view.which.value = "errors"
    wanted = [frames["apt"].call[i] for i in chosen(frames, "errors")][:3]
    assert all(call in view.view.value for call in wanted)
    assert f"3 of {len(chosen(frames, 'errors'))}" in view.view.value
    view.which.value = "differs"
    assert "differs: " in view.view.value


def test_the_budget_slider_shows_each_budget() -> None:
    view = BudgetSlider(DECISIONS)
    assert view.text.index("budget 0") < view.text.index("budget 2")
    assert "Budget 0" in view.view.value
    view.slider.value = 2
    assert "Budget 2" in view.view.value
    assert "never asked" in view.view.value
    assert "&lt;i&gt;" in view.view.value
    for form in (view.text, plain(view.html)):
        for decision in (d for made in DECISIONS.values() for d in made):
            assert decision.candidate in form
            assert decision.reason in form
            assert decision.action in form
            assert decision.rehearsed in form


def test_the_training_plot_observes_and_draws(tiny: Policy) -> None:
    seen = []

    def observer(step: int, policy: Policy, trajectories: object) -> dict[str, float]:
        seen.append((step, policy))
        return {"fidelity": 0.25 * step, "optimism": 0.5}

    plot = TrainingPlot(observer)
    assert "img" not in plot.view.value
    assert plot(1, tiny, []) == {"fidelity": 0.25, "optimism": 0.5}
    plot(2, tiny, [])
    assert seen == [(1, tiny), (2, tiny)]
    assert plot.rows == [
        {"step": 1, "fidelity": 0.25, "optimism": 0.5},
        {"step": 2, "fidelity": 0.5, "optimism": 0.5},
    ]
    assert "alt='Curves up to step 2: fidelity 0.50, optimism 0.50'" in plot.view.value
    assert plt.get_fignums() == []
