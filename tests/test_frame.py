"""The frame of the project: what it needs, what imports what, and what would break on another machine."""

from __future__ import annotations

import ast
import importlib
import re
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import lint_notebooks

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "envace_lite"

FLOORS = [
    "alarms",
    "interrupts",
    "world",
    "model",
    "fidelity",
    "rollout",
    "reward",
    "grpo",
    "train",
    "evaluate",
    "rehearsal",
    "pretraining",
    "experiments",
    "course",
    "cli",
]
"""The entries of the library from the ground up. Each imports only from those before it."""

MOST_PAIRS = 60
"""At most so many pairs of entries of which one imports the other."""

SHOWS = ("experiments.plots", "experiments.demo", "course.widgets", "cli")
"""The modules that may load a display library when they are imported."""

DISPLAY = {"matplotlib", "ipywidgets"}

CONDA_NAMES = {"torch": "pytorch"}

NOT_IMPORTED = {
    "jupyterlab": "`make lab` opens the notebooks in it",
}
"""Runtime dependencies that no module and no notebook imports, with the reason."""


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def runtime() -> list[Requirement]:
    return [Requirement(line) for line in pyproject()["project"]["dependencies"]]


def for_tests() -> list[Requirement]:
    return [Requirement(line) for line in pyproject()["project"]["optional-dependencies"]["test"]]


# What the project needs ------------------------------------------------------------------------------------


def test_every_dependency_has_a_lower_bound_only() -> None:
    for requirement in [*runtime(), *for_tests()]:
        assert [bound.operator for bound in requirement.specifier] == [">="], str(requirement)


def environment_problems(environment: dict[str, Any], requirements: list[Requirement]) -> list[str]:
    """Where a conda environment disagrees with the requirements of the package."""
    problems = []
    if set(environment["channels"]) != {"conda-forge", "nodefaults"}:
        problems.append(f"channels are {environment['channels']}, not conda-forge alone")
    *plain, last = environment["dependencies"]
    if not isinstance(last, dict) or last.get("pip") not in (["-e ."], ["-e .[test]"]):
        problems.append("the last dependency is not `pip:` with the single entry `-e .`")
    given = {str(line) for line in plain} - {"pip"}
    python = [line for line in given if line.startswith("python=")]
    needed = {CONDA_NAMES.get(r.name, r.name) + str(r.specifier) for r in requirements}
    if len(python) != 1:
        problems.append("python has no version")
    elif not SpecifierSet(pyproject()["project"]["requires-python"]).contains(python[0].split("=")[1]):
        problems.append(f"{python[0]} is not what pyproject.toml allows")
    problems += [f"{line} is missing" for line in sorted(needed - given)]
    problems += [f"{line} is not in pyproject.toml" for line in sorted(given - needed - set(python))]
    return problems


def environment() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return loaded


def test_environment_agrees_with_pyproject() -> None:
    assert environment_problems(environment(), runtime()) == []


def test_environment_check_can_fail() -> None:
    broken = environment()
    broken["channels"].append("defaults")
    rest = broken["dependencies"][3:-1]
    broken["dependencies"] = ["python=3.9", "pip", "pytorch>=1.0", *rest, {"pip": ["torch", "-e ."]}]
    assert environment_problems(broken, runtime()) == [
        "channels are ['conda-forge', 'nodefaults', 'defaults'], not conda-forge alone",
        "the last dependency is not `pip:` with the single entry `-e .`",
        "python=3.9 is not what pyproject.toml allows",
        "pytorch>=2.9.0 is missing",
        "pytorch>=1.0 is not in pyproject.toml",
    ]


def pins() -> dict[str, Version]:
    """The exact versions of constraints.txt; any other kind of line is an error."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9A-Za-z.]+)", line)
            assert match, f"not an exact public version: {line!r}"
            found[canonicalize_name(match[1])] = Version(match[2])
    return found


def unmet(requirements: list[Requirement], versions: dict[str, Version]) -> list[str]:
    """Requirements that no pin satisfies."""
    return [
        str(requirement)
        for requirement in requirements
        if (version := versions.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version)
    ]


def test_constraints_satisfy_pyproject() -> None:
    assert unmet([*runtime(), *for_tests()], pins()) == []


def test_constraints_check_can_fail() -> None:
    assert unmet([Requirement("torch>=99"), Requirement("no-such-package>=1")], pins()) == [
        "torch>=99",
        "no-such-package>=1",
    ]


# What imports what -----------------------------------------------------------------------------------------


def notebook_cells() -> Iterator[ast.AST]:
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        for cell in lint_notebooks.read(path)["cells"]:
            if cell["cell_type"] == "code":
                yield ast.parse(lint_notebooks.python_source(cell))


def imported(tree: ast.AST) -> set[str]:
    """Top-level names of everything that a piece of code imports from elsewhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def library() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_runtime_dependency_is_used() -> None:
    used: set[str] = set()
    for path in library():
        used |= imported(ast.parse(path.read_text(encoding="utf-8")))
    for tree in notebook_cells():
        used |= imported(tree)
    needed = {requirement.name for requirement in runtime()}
    assert needed - used - set(NOT_IMPORTED) == set(), "imported nowhere: use it, or take it out"
    assert set(NOT_IMPORTED) & used == set(), "imported after all: no reason needed"
    assert set(NOT_IMPORTED) <= needed


def floor_of(path: Path) -> str:
    """The entry of the library that a file belongs to: a module, or a package of modules."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_within(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Each import of the library by one of its files: the line, and the dotted name within the library."""
    package = ("envace_lite", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "envace_lite":
                    yield node.lineno, alias.name.removeprefix("envace_lite").lstrip(".")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = [*base, *(node.module.split(".") if node.module else ())]
            if target[0] != "envace_lite":
                continue
            for alias in node.names:
                yield node.lineno, ".".join([*target[1:], alias.name])


def floor_problems(text: str, path: Path, floors: list[str]) -> list[str]:
    """Imports of one file of the library that do not run downwards."""
    own = floor_of(path)
    if own not in floors:
        return [f"{own} is on no floor: add it to FLOORS in tests/test_frame.py and to CONTRIBUTING.md"]
    problems = []
    for line, name in imports_within(ast.parse(text), path):
        target = name.split(".")[0]
        where = f"{path.relative_to(ROOT)}:{line}"
        if name == "__version__":
            continue
        if target not in floors:
            problems.append(f"{where} imports {target or 'the package itself'}, which is on no floor")
        elif floors.index(target) > floors.index(own):
            problems.append(f"{where}: {own} imports {target}, which is above it")
        elif target == own and len(path.relative_to(PACKAGE).parts) == 1:
            problems.append(f"{where}: {own} imports itself")
    return problems


@pytest.mark.parametrize("path", library(), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_only_downwards(path: Path) -> None:
    if floor_of(path) not in {"__init__", "__main__"}:  # the front door opens on every floor
        assert floor_problems(path.read_text(encoding="utf-8"), path, FLOORS) == []


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("grpo.py", "from envace_lite.train import train", "grpo imports train, which is above it"),
        ("grpo.py", "import envace_lite.train", "grpo imports train"),
        ("grpo.py", "from envace_lite import train", "grpo imports train"),
        ("grpo.py", "from . import train", "grpo imports train"),
        ("grpo.py", "def later():\n    from .train import train", "grpo.py:2: grpo imports train"),
        ("grpo.py", "from envace_lite import Tool", "imports Tool, which is on no floor"),
        ("grpo.py", "import envace_lite", "imports the package itself"),
        ("grpo.py", "from .grpo import clipped_loss", "grpo imports itself"),
        ("world/shop.py", "from ..model.compact import render", "world imports model"),
        ("world/shop.py", "from envace_lite.model.compact import render", "world imports model"),
        ("nowhere.py", "", "nowhere is on no floor"),
    ],
)
def test_an_upward_import_is_found(module: str, text: str, problem: str) -> None:
    problems = floor_problems(text, PACKAGE / module, FLOORS)
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("grpo.py", "import torch\nfrom envace_lite.world.tools import Tool\nfrom .world.shop import Shop"),
        ("cli/shared.py", "from envace_lite import __version__, train"),
        ("world/shop.py", "from .task import Domain\nfrom ..world.tools import Tool\nfrom . import task"),
        ("world/shop.py", "from envace_lite.world.task import Domain"),
    ],
)
def test_a_downward_import_passes(module: str, text: str) -> None:
    assert floor_problems(text, PACKAGE / module, FLOORS) == []


def pairs_of_entries() -> set[tuple[str, str]]:
    """Each pair of entries of which the first imports the second, however often."""
    pairs = set()
    for path in library():
        own = floor_of(path)
        if own in FLOORS:
            found = imports_within(ast.parse(path.read_text(encoding="utf-8")), path)
            pairs |= {(own, name.split(".")[0]) for _, name in found}
    return {(own, target) for own, target in pairs if target in FLOORS and target != own}


def test_the_house_is_small_enough_to_draw() -> None:
    assert len(FLOORS) + 1 <= 16  # and the package itself
    assert len(pairs_of_entries()) <= MOST_PAIRS


def dotted(path: Path) -> str:
    """The dotted name of a file within the library; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_graph() -> dict[str, set[str]]:
    """For each module of the library those that it imports.

    `from package import name` imports a module of that name if there is one, and else from the package itself.
    """
    files = {dotted(path): path for path in library() if dotted(path)}
    graph = {}
    for module, path in files.items():
        names = {name for _, name in imports_within(ast.parse(path.read_text(encoding="utf-8")), path)}
        graph[module] = {n if n in files else n.rpartition(".")[0] for n in names} - {"", module}
    return graph


def test_no_modules_import_in_a_circle() -> None:
    graph = module_graph()
    assert list(TopologicalSorter(graph).static_order())
    with pytest.raises(CycleError):
        TopologicalSorter({**graph, "world.tools": {"world.domain"}}).prepare()


def test_no_public_name_hides_a_module() -> None:
    """`import envace_lite.train` gives the module; the same holds within each package."""
    for path in library():
        package, _, name = f"envace_lite.{dotted(path)}".rpartition(".")
        if dotted(path) and name != "__main__":
            module = importlib.import_module(f"{package}.{name}")
            assert getattr(importlib.import_module(package), name) is module


def leads_somewhere(name: str) -> bool:
    """Whether a dotted name is a module of the library, or something that one holds."""
    module, *rest = name.split(".")
    found: Any = importlib.import_module(module)
    for part in rest:
        try:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
        except (ModuleNotFoundError, AttributeError):
            return False
    return True


def test_every_dotted_name_in_texts_and_sources_leads_somewhere() -> None:
    """A module that was moved is still called by its old name in a string, or on a page."""
    texts = [*library(), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/**/*.md")]
    texts += [*ROOT.glob("notebooks/**/*.md"), *ROOT.glob("notebooks/**/*.ipynb"), ROOT / "Makefile"]
    lost = {
        (path.name, name)
        for path in texts
        if path.name != "CHANGELOG.md"  # it tells of names that are no more
        for name in re.findall(r"\benvace_lite(?:\.[a-z]\w+)+", path.read_text(encoding="utf-8"))
        if not leads_somewhere(name)
    }
    assert lost == set()
    assert leads_somewhere("envace_lite.world.tools.ToolCall")
    assert not leads_somewhere("envace_lite.bench")


def test_contributing_lists_the_same_floors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.search(r"From the ground up:\n\n(.+?)\n\n", text, re.S)
    assert listed
    assert re.split(r",\s+", listed[1]) == FLOORS


def loaded_at_import(tree: ast.AST) -> set[str]:
    """Top-level names that a module imports when it is imported itself: not those inside functions."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= imported(node)
        else:
            names |= loaded_at_import(node)
    return names


@pytest.mark.parametrize("path", library(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_display_modules_load_a_display_library(path: Path) -> None:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    if not module.startswith(SHOWS):
        assert loaded_at_import(ast.parse(path.read_text(encoding="utf-8"))) & DISPLAY == set()


def test_display_check_can_fail() -> None:
    loaded = "try:\n    import matplotlib.pyplot as plt\nexcept ImportError:\n    pass"
    assert loaded_at_import(ast.parse(loaded)) == {"matplotlib"}
    lazy = "def draw():\n    import matplotlib\nif TYPE_CHECKING:\n    import ipywidgets"
    assert loaded_at_import(ast.parse(lazy)) == set()


# What would break on another machine -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [*library(), *sorted((ROOT / "tests").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_open_names_its_encoding(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert list(lint_notebooks.missing_encoding(tree)) == []


MACHINE_PATH = re.compile(
    r"(?<![\w./~)>-])/(?:home|root|work|tmp|opt|Users|private|var/folders)(?:/|(?=[\s\"'`,;:)]|$))"
    r"|\b[A-Z]:\\+Users\\"
)


def project_files() -> list[str]:
    """Names of the files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, encoding="utf-8")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return sorted(name for name in set(listed.stdout.split("\0")) if (ROOT / name).is_file())


def test_no_file_holds_a_path_of_one_machine() -> None:
    found = []
    for name in project_files():
        data = (ROOT / name).read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize("path", ["home/me/run", "root", "work/main", "tmp/x.json", "Users/me"])
def test_machine_path_is_found(path: str) -> None:
    assert MACHINE_PATH.search(f'open("/{path}")')
    assert MACHINE_PATH.search(f"/{path}")


@pytest.mark.parametrize(
    ("before", "path"),
    [("a.org", "home/x"), ("act/work", "tmp/"), (".", "tmp/x"), ("<", "tmp>"), ("1 ", "rooted")],
)
def test_other_text_is_no_machine_path(before: str, path: str) -> None:
    assert not MACHINE_PATH.search(f"{before}/{path}")


ACCELERATOR = re.compile(r"""["'](?:cuda|mps|xpu)\b|torch\.(?:cuda|mps|xpu)\b|\.cuda\(""")


@pytest.mark.parametrize("path", library(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_asks_for_an_accelerator(path: Path) -> None:
    """Everything runs on the CPU, so every machine computes the same."""
    assert not ACCELERATOR.search(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["model.to('cuda:0')", "torch.mps.synchronize()", "x.cuda()"])
def test_an_accelerator_is_found(text: str) -> None:
    assert ACCELERATOR.search(text)


def test_nothing_is_compiled() -> None:
    """Python files only, and no extension to build: one package for every processor."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.suffix for path in files} <= {".py", ".typed"}
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "ext-modules" not in setup.get("tool", {}).get("setuptools", {})


ONE_SYSTEM = {"fcntl", "grp", "pwd", "resource", "termios", "winreg"}
"""Modules that some systems lack."""
ONE_SYSTEMS_CALLS = {"SIGALRM", "alarm", "fork", "geteuid", "killpg", "mkfifo", "setsid"}


def missing_elsewhere(tree: ast.AST) -> set[str]:
    """Modules and calls that some systems lack, but for those tried, or asked for by `hasattr`, first."""
    asked = {
        node.args[1].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "hasattr"
        and isinstance(node.args[1], ast.Constant)
    }
    tried = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for part in node.body
        for inner in ast.walk(part)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in tried:
            found |= {alias.name for alias in node.names} & ONE_SYSTEM
        elif isinstance(node, ast.ImportFrom) and node not in tried:
            found |= {node.module or ""} & ONE_SYSTEM
        elif isinstance(node, ast.Attribute) and node.attr not in asked:
            found |= {node.attr} & ONE_SYSTEMS_CALLS
    return found


@pytest.mark.parametrize(
    "path",
    [*library(), *sorted((ROOT / "tests").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_call_that_one_system_lacks(path: Path) -> None:
    assert missing_elsewhere(ast.parse(path.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import resource", {"resource"}),
        ("from pwd import getpwnam", {"pwd"}),
        ("signal.alarm(3)", {"alarm"}),
        ("os.fork()", {"fork"}),
        ("try:\n    import resource\nexcept ImportError:\n    pass", set()),
        ("if hasattr(os, 'geteuid'):\n    os.geteuid()", set()),
    ],
)
def test_a_call_that_one_system_lacks_is_found(text: str, found: set[str]) -> None:
    assert missing_elsewhere(ast.parse(text)) == found


@pytest.mark.parametrize("connect", ["connect", "connect_ex"])
def test_the_network_is_out_of_reach(connect: str) -> None:
    with socket.socket() as own, pytest.raises(AssertionError, match="a test reached for the network"):
        getattr(own, connect)(("192.0.2.1", 9))  # an address for documentation alone
