"""One question in a process of its own: run a student's cells, then a test, and write down how it went.

A script of the standard library alone: the grader starts it by its path, so nothing else is loaded, and ends it when
its time is over. It protects the grader from loops and crashes, not from malice: grade what you would run yourself.

    python question.py RESULT.json SECONDS < QUESTION.json
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any


def main(result: str, seconds: int) -> None:
    """Read a question, run it, and write `{"passed": ..., "message": ...}` to the file `result`.

    The system ends this process when it has computed for so many seconds, where it can (not on Windows): the first
    signal says why it died, and if that is caught the second one cannot be.
    """
    try:
        import resource
    except ImportError:
        pass
    else:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        hard = seconds + 1 if most == resource.RLIM_INFINITY else min(seconds + 1, most)
        resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, hard), hard))
    question = json.load(sys.stdin)
    outcome = run(question["cells"], question["shown"], question["hidden"])
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")


def run(cells: dict[str, str], shown: str, hidden: str) -> dict[str, Any]:
    """Run cells (by name) and a test in one namespace.

    Returns:
        Whether the test passed, and a message. It never holds a line of a hidden test, nor a value from one.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    broken = ""
    for name, code in cells.items():
        try:
            exec(compile(code, f"cell {name}", "exec"), space)
        except BaseException as error:  # a cell that fails does not stop the ones after it, as in a notebook
            broken = broken or f"the cell {name!r} does not run: {_described(error)}"
    for code, secret in ((shown, False), (hidden, True)):
        try:
            exec(compile(code, "test", "exec"), space)
        except AssertionError as error:
            said = str(error) or "a test fails"
            return {"passed": False, "message": f"{said} ({broken})" if broken else said}
        except BaseException as error:
            return {"passed": False, "message": broken or _raised(error, secret)}
    return {"passed": True, "message": ""}


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _raised(error: BaseException, secret: bool) -> str:
    """What an error in a test is called; where it happened counts only in the student's own cells."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("cell ")]
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    if secret:
        return f"your code raises {type(error).__name__} in a case that is not shown{where}"
    return f"your code raises {_described(error)}{where}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
