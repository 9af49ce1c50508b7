"""What a reader can step through in a notebook: a rollout, a comparison, a private rehearsal, a training run.

Each widget shows everything before anything runs: it carries the whole story as text and as HTML (for an export, a
code host, an editor without widgets, a screen reader), and with a kernel it is live. Buttons have labels and follow one
another in the order of use.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from ipywidgets import HTML, Button, Checkbox, Dropdown, HBox, Layout, SelectionSlider, VBox

from envace_lite.course import steps
from envace_lite.experiments import plots
from envace_lite.model.policy import Policy
from envace_lite.reward import task_success
from envace_lite.rollout import Trajectory
from envace_lite.train import EvalCallback

_WIDE = {"description_width": "initial"}


class Readable(VBox):
    """A widget that can also be read without a kernel.

    Args:
        children: what is live.
        text, html: the whole content, for where nothing is live.
    """

    def __init__(self, children: Sequence[Any], text: str, html: str):
        super().__init__(children)
        self.text, self.html = text, html

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        live = super()._repr_mimebundle_(**kwargs)
        return {**live, "text/plain": self.text, "text/html": self.html}

    def __repr__(self) -> str:
        return self.text


def _spoken(html: str) -> str:
    """HTML that a screen reader reads out when it changes."""
    return f"<div role='status' aria-live='polite' style='line-height:1.5'>{html}</div>"


class Stepper(Readable):
    """A rollout, one message at a time; the real response is a click away.

    Args:
        trajectory: of `rollout`.
        policy: who wrote it.
        real: whether the real environment is asked, afterwards, about the same calls.
        probabilities: whether each token shows the probability with which it was sampled.
    """

    def __init__(
        self, trajectory: Trajectory, policy: Policy, *, real: bool = True, probabilities: bool = True
    ):
        self.steps = steps.rollout_steps(trajectory, policy.chat, real=real)
        self.place, self.probabilities = 0, probabilities
        reward = task_success(trajectory)
        self.stop_reason = (
            f"The rollout ends: {trajectory.stop_reason}. Task success, by the label: {reward:.0f}."
        )
        self.back, self.forth = (Button(description=f"{way} step") for way in ("Previous", "Next"))
        self.reveal = Checkbox(description="Show the real response", indent=False)
        self.view = HTML()
        self.back.on_click(lambda _: self.move(-1))
        self.forth.on_click(lambda _: self.move(+1))
        self.reveal.observe(lambda _: self.move(0), "value")
        children = [
            HBox([self.back, self.forth, self.reveal], layout=Layout(flex_flow="row wrap")),
            self.view,
        ]
        texts = [steps.step_text(step, probabilities=probabilities) for step in self.steps]
        pieces = [
            steps.step_html(step, self._title(i), probabilities=probabilities)
            for i, step in enumerate(self.steps)
        ]
        super().__init__(
            children,
            "\n".join([*(f"{self._title(i)}: {text}" for i, text in enumerate(texts)), self.stop_reason]),
            "".join(pieces) + f"<p>{escape(self.stop_reason)}</p>",
        )
        self.move(0)

    def _title(self, place: int) -> str:
        return f"Step {place + 1} of {len(self.steps)}"

    def move(self, by: int) -> None:
        """Go forth or back by some steps; it stops at both ends."""
        self.place = min(max(self.place + by, 0), len(self.steps) - 1)
        real = "open" if self.reveal.value else "hidden"
        step, title = self.steps[self.place], self._title(self.place)
        body = steps.step_html(step, title, real=real, probabilities=self.probabilities)
        if self.place == len(self.steps) - 1:
            body += f"<p>{escape(self.stop_reason)}</p>"
        self.view.value = _spoken(body)


class SideBySide(Readable):
    """Rehearsed responses next to real ones.

    Args:
        columns: heading -> the frame of `fidelity.compare`, all on the same pairs.
        limit: the most pairs that are shown at once.
    """

    def __init__(self, columns: Mapping[str, pd.DataFrame], limit: int = 12):
        self.columns, self.limit = columns, limit
        self.which = Dropdown(
            description="Show",
            options=[(title, which) for which, title in steps.SHOWN.items()],
            value="all",
            style=_WIDE,
        )
        self.view = HTML()
        self.which.observe(lambda _: self._update(), "value")
        rows = steps.chosen(columns, "all")[:limit]
        super().__init__(
            [self.which, self.view],
            steps.comparison_text(columns, rows),
            steps.comparison_html(columns, rows),
        )
        self._update()

    def _update(self) -> None:
        rows = steps.chosen(self.columns, self.which.value)
        body = steps.comparison_html(self.columns, rows[: self.limit])
        self.view.value = _spoken(f"<p>{min(len(rows), self.limit)} of {len(rows)}</p>{body}")


class BudgetSlider(Readable):
    """Private rehearsal under several budgets.

    Args:
        decisions: budget N -> what was considered and committed, in order.
    """

    def __init__(self, decisions: Mapping[int, Sequence[steps.Decision]]):
        self.decisions = dict(sorted(decisions.items()))
        self.slider = SelectionSlider(description="Budget N", options=list(self.decisions), style=_WIDE)
        self.view = HTML()
        self.slider.observe(lambda _: self._update(), "value")
        super().__init__(
            [self.slider, self.view],
            "\n".join(steps.decisions_text(n, made) for n, made in self.decisions.items()),
            "".join(steps.decisions_html(n, made) for n, made in self.decisions.items()),
        )
        self._update()

    def _update(self) -> None:
        budget = self.slider.value
        self.view.value = _spoken(steps.decisions_html(budget, self.decisions[budget]))


class TrainingPlot(Readable):
    """An eval callback that also draws what it sees: show it, then hand it to `train(..., eval_callback=plot)`.

    Args:
        measure: measures the policy, e.g. `arms.small_eval`.
    """

    def __init__(self, measure: EvalCallback):
        self.measure, self.rows = measure, list[dict[str, float]]()
        self.view = HTML(_spoken("<p>Nothing yet: the curves come while training runs.</p>"))
        waiting = "The curves of a training run are drawn here while it runs."
        super().__init__([self.view], waiting, f"<p>{waiting}</p>")

    def __call__(self, step: int, policy: Policy, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Measure, draw, and return what was measured."""
        values = self.measure(step, policy, trajectories)
        self.rows.append({"step": step, **values})
        figure, picture = plots.progress(self.rows), io.BytesIO()
        figure.savefig(picture, format="png", dpi=90)
        plt.close(figure)
        said = ", ".join(f"{plots.LABELS.get(name, name)} {value:.2f}" for name, value in values.items())
        data = base64.b64encode(picture.getvalue()).decode("ascii")
        alt = escape(f"Curves up to step {step}: {said}", quote=True)
        self.view.value = f"<img alt='{alt}' src='data:image/png;base64,{data}'>" + _spoken(
            f"<p>Step {step}: {escape(said)}</p>"
        )
        return values
