"""Assignments: what is made of a master, which solutions pass, and what a student is told."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest

from envace_lite.course import question
from envace_lite.course.assignments import FOLDER, Assignment, MasterError, generate, masters, read_master

ASSIGNMENTS = {assignment.name: assignment for assignment in masters()}
NAMES = list(ASSIGNMENTS)


def outcomes(name: str, **solutions: str) -> dict[str, str]:
    """What is wrong with each question's answer when these solutions stand in the place of the master's."""
    assignment = ASSIGNMENTS[name]
    cells = {
        part.name: solutions.get(part.name, part.solved)
        for part in assignment.parts
        if part.kind in ("given", "solution")
    }
    assert set(solutions) <= set(cells)
    found = {q.name: question.run(cells, q.shown, q.hidden) for q in assignment.questions}
    return {name: "" if result["passed"] else result["message"] for name, result in found.items()}


def test_there_are_four() -> None:
    assert NAMES == ["error_recall", "rehearsal_gate", "role_advantages", "rollout_loop"]


@pytest.mark.parametrize("name", NAMES)
def test_a_master_runs_from_top_to_bottom(name: str) -> None:
    runpy.run_path(str(FOLDER / "masters" / f"{name}.py"))


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name: str) -> None:
    assert set(outcomes(name).values()) == {""}


def golden(folder: Path) -> dict[str, Any]:
    """All copies but for what running them adds, and the rubric."""
    copies: dict[str, Any] = {"RUBRIC.md": (folder / "RUBRIC.md").read_text(encoding="utf-8")}
    for path in folder.rglob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"].pop("language_info", None)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell |= {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
        copies[path.relative_to(folder).as_posix()] = notebook
    return copies


def test_the_committed_copies_are_those_of_the_masters(tmp_path: Path) -> None:
    generate(out=tmp_path)
    assert golden(tmp_path) == golden(FOLDER), "run `make assignments`"
    changed = golden(tmp_path)
    changed["student/rollout_loop.ipynb"]["cells"][1]["source"] += " "
    assert changed != golden(FOLDER)


@pytest.mark.parametrize("name", NAMES)
def test_solved_copies_are_run_and_students_are_not(name: str) -> None:
    """nbval compares what they print with what is committed."""
    for copy, run in (("solution", True), (f"source/{name}", True), ("student", False)):
        notebook = json.loads((FOLDER / copy / f"{name}.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        counts = [cell["execution_count"] for cell in cells]
        assert counts == (list(range(1, len(cells) + 1)) if run else [None] * len(cells))
        assert any(cell["outputs"] for cell in cells) == run
        assert "error" not in {output["output_type"] for cell in cells for output in cell["outputs"]}
        assert "widgets" not in notebook["metadata"]


@pytest.mark.parametrize("name", NAMES)
def test_a_students_copy_holds_no_solution_and_no_hidden_test(name: str) -> None:
    text = (FOLDER / "student" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert "YOUR CODE HERE" in text
    assert "### " not in text.replace("# ## ", "")
    for part in ASSIGNMENTS[name].parts:
        if part.kind == "solution":
            body = part.text.split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0]
            assert not any(line.strip() in text for line in body.splitlines() if len(line.strip()) > 16)
        if part.hidden:
            hidden = set(part.hidden.splitlines()) - set(part.shown.splitlines())
            lines = [line.strip() for line in hidden if len(line.strip()) > 16]
            assert not any(line in text for line in lines)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["student", "solution", "source"])
def test_copies_carry_nbgraders_metadata(name: str, version: str) -> None:
    notebook = ASSIGNMENTS[name].notebook(version)
    nbformat.validate(notebook)
    entries = [cell.metadata.nbgrader for cell in notebook.cells if cell.cell_type == "code"]
    ids = [entry.grade_id for entry in entries]
    assert len(ids) == len(set(ids))
    assert sum(entry.get("points", 0) for entry in entries) == ASSIGNMENTS[name].points
    for entry in entries:
        keys = {"grade", "grade_id", "locked", "schema_version", "solution", "task"}
        assert set(entry) == keys | ({"points"} if entry.grade else set())
        assert entry.schema_version == 3
        assert not (entry.grade and entry.solution)
    assert all(not cell.get("outputs") for cell in notebook.cells)


@pytest.mark.parametrize("name", NAMES)
def test_an_unfilled_copy_runs_through_and_says_what_is_missing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    space: dict[str, Any] = {}
    for cell in ASSIGNMENTS[name].notebook("student").cells:
        if cell.cell_type == "code":
            exec(cell.source, space)
    said = capsys.readouterr().out
    assert said.count("Not yet: write your solution here") >= len(ASSIGNMENTS[name].questions)
    assert "Passed." not in said


@pytest.mark.parametrize("name", NAMES)
def test_a_filled_copy_says_that_it_passed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assignment, space = ASSIGNMENTS[name], dict[str, Any]()
    solved = {part.name: part.solved for part in assignment.parts if part.kind == "solution"}
    for cell in assignment.notebook("student").cells:
        if cell.cell_type == "code":
            exec(solved.get(cell.metadata.nbgrader.grade_id, cell.source), space)
    said = capsys.readouterr().out
    assert said.count("Passed.") == len(assignment.questions)
    assert "Not yet" not in said


@pytest.mark.parametrize("name", NAMES)
def test_the_rubric_names_each_question_with_its_points(name: str) -> None:
    rubric = (FOLDER / "RUBRIC.md").read_text(encoding="utf-8")
    assert ASSIGNMENTS[name].rubric() in rubric
    for part in ASSIGNMENTS[name].questions:
        assert f"| `{part.name}` | {part.points} | {part.about} |" in rubric


LOOP = """def rollout(prompt, act, respond, response_role=2, horizon=10):
    messages, roles = list(prompt), [0] * len(prompt)
    for _ in range(horizon):
        messages.append(act(messages)); roles.append(1)
        if messages[-1].startswith("say"):
            break
        messages.append(respond(messages)); roles.append(response_role)
    return messages, roles
"""
BASELINE = """def role_advantages(rewards, outputs):
    mu = {}
    return [r - mu for r in rewards]
"""
WEIGHTED = "sum(n * r for n, r in zip(outputs, rewards))"
VERDICT = "def verdict(response):\n    {}\n"
RECALL = """def said(pairs):
    return [verdict(b) for a, b in pairs if verdict(a) == "error"]


def error_recall(pairs):
    {}


def optimism(pairs):
    {}
"""
SHARE = "return said(pairs).count('{}') / len(said(pairs)) if said(pairs) else None"
STANDARDISED = """def role_advantages(rewards, outputs):
    import statistics

    mean, spread = statistics.mean(rewards), statistics.pstdev(rewards)
    return [(r - mean) / spread for r in rewards]
"""
TOKENS = "def token_advantages(role_ids, a, b):\n    return {}\n"
PRECISION = """said_error = [a for a, b in pairs if verdict(b) == "error"]
    if said_error and said(pairs):
        return [verdict(a) for a in said_error].count("error") / 2"""
EXACT = """hits = [a == b for a, b in pairs if verdict(a) == "error"]
    return sum(hits) / len(hits) if hits else None"""
BELIEVED = """if call:
        execute(call)
        ledger.append((call, rehearse(call)))
        return rehearse(call)"""
GATE = """def gate(candidates, rehearse, budget):
    for place, call in enumerate(candidates):
        {}
    return None
"""
GATE_BODY = """if not is_write(call) or budget == 0:
            return call
        if place == budget:
            return None
        if "ok" in rehearse(call).split():
            return call
"""
LEDGER = """def commit(candidates, rehearse, execute, budget, ledger):
    call = gate(candidates, rehearse, budget)
    {}
"""

WRONG: list[tuple[str, str, str, str, str]] = [
    # assignment, solution, code, the question that fails, what is said
    (
        "rollout_loop",
        "rollout",
        LOOP.replace("act(messages)", "act(list(prompt))"),
        "loop-reads",
        "pass it all messages",
    ),
    (
        "rollout_loop",
        "rollout",
        LOOP.replace("respond(messages)", "respond(messages[:-1])"),
        "loop-reads",
        "the call",
    ),
    (
        "rollout_loop",
        "rollout",
        LOOP.replace("roles.append(response_role)", "roles.append(2)"),
        "loop-roles",
        "response_role",
    ),
    ("rollout_loop", "rollout", LOOP.replace("list(prompt)", "prompt"), "loop-prompt", "copy"),
    (
        "rollout_loop",
        "rollout",
        LOOP.replace("for _ in range(horizon):", "while True:"),
        "loop-horizon",
        "the horizon does not",
    ),
    ("rollout_loop", "rollout", LOOP.replace("range(horizon)", "range(10)"), "loop-horizon", "three calls"),
    (
        "rollout_loop",
        "rollout",
        LOOP.replace("messages, roles\n", "messages\n"),
        "loop-one-call",
        "two lists",
    ),
    ("rollout_loop", "rollout", LOOP.replace("return messages, roles", "pass"), "loop-one-call", "nothing"),
    ("rollout_loop", "rollout", LOOP.replace("[0] * len(prompt)", "[]"), "loop-roles", "0 for the prompt"),
    (
        "role_advantages",
        "advantages",
        BASELINE.format("sum(rewards) / len(rewards)"),
        "adv-weighted",
        "4 / 16",
    ),
    (
        "role_advantages",
        "advantages",
        BASELINE.format(WEIGHTED + " / len(rewards)"),
        "adv-equal",
        "plain mean",
    ),
    (
        "role_advantages",
        "advantages",
        BASELINE.format(WEIGHTED + " / sum(outputs)"),
        "adv-silent",
        "ZeroDivisionError",
    ),
    (
        "role_advantages",
        "advantages",
        BASELINE.format("sum(rewards) / len(rewards)").replace("r - mu", "mu - r"),
        "adv-equal",
        "not mean - R",
    ),
    ("role_advantages", "advantages", STANDARDISED, "adv-equal", "plain mean"),
    (
        "role_advantages",
        "advantages",
        "def role_advantages(rewards, outputs):\n    pass\n",
        "adv-equal",
        "returns nothing",
    ),
    (
        "role_advantages",
        "tokens",
        TOKENS.format("[a if r == 1 else b for r in role_ids]"),
        "adv-tokens",
        "given token",
    ),
    (
        "role_advantages",
        "tokens",
        TOKENS.format("[(0, b, a)[r] for r in role_ids]"),
        "adv-tokens",
        "role id 1 is act",
    ),
    (
        "role_advantages",
        "tokens",
        TOKENS.format("[(0, a, b)[r] for r in role_ids if r]"),
        "adv-tokens",
        "each token",
    ),
    (
        "error_recall",
        "verdict",
        VERDICT.format("return 'error' if 'error' in response else 'ok' if 'ok' in response else None"),
        "recall-verdict",
        "whole word",
    ),
    (
        "error_recall",
        "verdict",
        VERDICT.format("return 'error' if 'error' in response.split() else 'ok'"),
        "recall-verdict",
        "return None",
    ),
    (
        "error_recall",
        "verdict",
        VERDICT.format("return response.split()[-2]"),
        "recall-verdict",
        "return None",
    ),
    (
        "error_recall",
        "recall",
        RECALL.format("return said(pairs).count('error') / len(pairs)", SHARE.format("ok")),
        "recall-errors",
        "one of the two",
    ),
    (
        "error_recall",
        "recall",
        RECALL.format("return said(pairs).count('error') / len(said(pairs))", SHARE.format("ok")),
        "recall-errors",
        "ZeroDivisionError",
    ),
    (
        "error_recall",
        "recall",
        RECALL.format(PRECISION, SHARE.format("ok")),
        "recall-errors",
        "divide by the real errors",
    ),
    (
        "error_recall",
        "recall",
        RECALL.format(
            SHARE.format("error"), "r = error_recall(pairs)\n    return None if r is None else 1 - r"
        ),
        "recall-optimism",
        "neither",
    ),
    ("error_recall", "recall", RECALL.format(EXACT, SHARE.format("ok")), "recall-errors", "not every word"),
    (
        "error_recall",
        "recall",
        RECALL.format("return exact(pairs)", SHARE.format("ok")),
        "recall-errors",
        "one of the two",
    ),
    ("rehearsal_gate", "gate", GATE.format("return call"), "gate-first", "the first success"),
    (
        "rehearsal_gate",
        "gate",
        GATE.format(GATE_BODY.replace("if place == budget:", "if False:")),
        "gate-budget",
        "nothing is committed",
    ),
    (
        "rehearsal_gate",
        "gate",
        GATE.format(GATE_BODY.replace(".split()", "")),
        "gate-first",
        "o1:ok is a record",
    ),
    (
        "rehearsal_gate",
        "gate",
        GATE.format(GATE_BODY.replace(" or budget == 0", "")),
        "gate-zero",
        "committed unseen",
    ),
    (
        "rehearsal_gate",
        "gate",
        GATE.format(GATE_BODY.replace("not is_write(call) or ", "")),
        "gate-reads",
        "get_order",
    ),
    (
        "rehearsal_gate",
        "gate",
        GATE.format(GATE_BODY.replace("return None", "return candidates[0]")),
        "gate-budget",
        "nothing is committed",
    ),
    (
        "rehearsal_gate",
        "gate",
        GATE.format(GATE_BODY).replace(
            "    for place", "    [rehearse(c) for c in candidates]\n    for place"
        ),
        "gate-first",
        "wasted",
    ),
    ("rehearsal_gate", "ledger", LEDGER.format("return execute(call)"), "gate-ledger", "ledger"),
    (
        "rehearsal_gate",
        "ledger",
        LEDGER.format("r = execute(call)\n    ledger.append((call, r))\n    return r"),
        "gate-ledger",
        "commits nothing",
    ),
    ("rehearsal_gate", "ledger", LEDGER.format(BELIEVED), "gate-ledger", "REAL"),
    (
        "rehearsal_gate",
        "ledger",
        LEDGER.format("if call:\n        r = execute(call)\n        ledger.append((call, r))"),
        "gate-ledger",
        "returns the real response",
    ),
]


@pytest.mark.parametrize(("name", "cell", "code", "fails", "said"), WRONG)
def test_a_usual_mistake_fails_with_a_message_that_helps(
    name: str, cell: str, code: str, fails: str, said: str
) -> None:
    found = outcomes(name, **{cell: code})
    assert said in found[fails], found


def test_there_are_five_usual_mistakes_for_each() -> None:
    for name in NAMES:
        assert sum(wrong[0] == name for wrong in WRONG) >= 5


RIGHT: list[tuple[str, str, str]] = [
    ("rollout_loop", "rollout", LOOP),
    (
        "rollout_loop",
        "rollout",
        """def rollout(prompt, act, respond, response_role=2, horizon=10):
    def go(said, ids, left):
        if left == 0:
            return said, ids
        text = act(said)
        if text[:3] == "say":
            return [*said, text], [*ids, 1]
        said = [*said, text]
        return go([*said, respond(said)], [*ids, 1, response_role], left - 1)

    return go(list(prompt), [0 for _ in prompt], horizon)
""",
    ),
    (
        "rollout_loop",
        "rollout",
        """def rollout(prompt, act, respond, response_role=2, horizon=10):
    said = [(text, 0) for text in prompt]

    def texts():
        return [text for text, _ in said]

    while horizon and not texts()[-1].startswith("say"):
        said.append((act(texts()), 1))
        if not texts()[-1].startswith("say"):
            said.append((respond(texts()), response_role))
        horizon -= 1
    return texts(), tuple(role for _, role in said)
""",
    ),
    (
        "role_advantages",
        "advantages",
        """def role_advantages(rewards, outputs):
    copies = [r for n, r in zip(outputs, rewards) for _ in range(int(n))] or rewards
    return [r - sum(copies) / len(copies) for r in rewards]
""",
    ),
    (
        "role_advantages",
        "tokens",
        """def token_advantages(role_ids, a, b):
    return [(0, a, b)[r] for r in role_ids]
""",
    ),
    (
        "error_recall",
        "verdict",
        """def verdict(response):
    words = set(response.split())
    return "error" if "error" in words else "ok" if "ok" in words else None
""",
    ),
    (
        "error_recall",
        "recall",
        """def error_recall(pairs):
    hit = miss = 0
    for real, rehearsed in pairs:
        if verdict(real) == "error":
            hit += verdict(rehearsed) == "error"
            miss += verdict(rehearsed) != "error"
    return hit / (hit + miss) if hit + miss else None


def optimism(pairs):
    errors = [p for p in pairs if verdict(p[0]) == "error"]
    if errors:
        return sum(verdict(p[1]) == "ok" for p in errors) / len(errors)
""",
    ),
    ("rehearsal_gate", "gate", GATE.format(GATE_BODY)),
    (
        "rehearsal_gate",
        "ledger",
        """def commit(candidates, rehearse, execute, budget, ledger):
    if (call := gate(candidates, rehearse, budget)) is not None:
        ledger += [(call, execute(call))]
        return ledger[-1][1]
""",
    ),
]


@pytest.mark.parametrize(("name", "cell", "code"), RIGHT)
def test_another_right_solution_passes(name: str, cell: str, code: str) -> None:
    assert set(outcomes(name, **{cell: code}).values()) == {""}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# %% nonsense\n", "line 1: no such cell"),
        ("# %% given a\nx = 1\n# %% given a\n", "line 3: the name 'a' occurs twice"),
        ("# %% solution a\ndef f(): ...\n", "line 1: the solution 'a' has no markers"),
        ("# %% test a two what\n", "no such cell"),
    ],
)
def test_a_broken_master_is_named_by_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MasterError, match=problem):
        read_master(path)


def test_points_and_parts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    text = "# %% [markdown]\n# Text\n#\n# more\n\n# %% test t 3 the rest of it\nassert 1\n"
    text += "### BEGIN HIDDEN TESTS\nassert 2\n### END HIDDEN TESTS\n"
    path.write_text(text, encoding="utf-8")
    assignment = read_master(path)
    assert isinstance(assignment, Assignment)
    words, test = assignment.parts
    assert words.text == "Text\n\nmore"
    assert (test.points, test.about, assignment.points) == (3, "the rest of it", 3)
    assert (test.shown, test.hidden) == ("assert 1", "assert 2\n")
