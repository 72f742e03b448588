"""The rooms of the experiments: who imports whom, and what is written once."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sr2.experiments

HOUSE = Path(sr2.experiments.__file__).parent
ROOMS = [
    "errors",
    "names",
    "plans",
    "tasks",
    "listing",
    "data",
    "models",
    "baselines",
    "run",
    "host_reads",
    "bench",
    "bench_table",
    "panel",
    "report",
    "paper",
]
"""Each may import those before it, `commands`, `reporting` and `flags` all of them."""
FILES = {
    ".".join(("sr2", "experiments", *path.relative_to(HOUSE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(HOUSE.rglob("*.py"))
}


def imports(module: str) -> Iterator[str]:
    """The modules of the experiments that one imports, types and imports inside functions included."""
    path = FILES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                deep, plain = ".".join([*base, alias.name]), ".".join(base)
                yield from ([deep] if deep in FILES else [plain] if plain in FILES else [])
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)


def room(module: str) -> str:
    return module.split(".")[2] if module.count(".") > 1 else ""


def test_rooms_import_those_before_them() -> None:
    assert {room(module) for module in FILES} <= {*ROOMS, "commands", "reporting", "flags", "trained", ""}
    for module in FILES:
        for other in imports(module):
            if room(module) in ROOMS and other != "sr2.experiments":
                assert room(other) in ROOMS[: ROOMS.index(room(module)) + 1], f"{module} imports {other}"


def test_no_import_cycle() -> None:
    graph = {module: set(imports(module)) - {module} for module in FILES}
    while leaves := [module for module, others in graph.items() if not others & graph.keys()]:
        for leaf in leaves:
            del graph[leaf]
    assert not graph, f"a cycle among {sorted(graph)}"


def test_the_report_knows_no_paper() -> None:
    for module in FILES:
        if room(module) == "report":
            assert not [other for other in imports(module) if room(other) == "paper"]


@pytest.mark.parametrize("module", FILES)
def test_files_are_short_and_say_what_they_are(module: str) -> None:
    text = FILES[module].read_text()
    assert text.count("\n") <= 350
    assert ast.get_docstring(ast.parse(text))


def test_cross_entropy_is_written_once() -> None:
    assert [module for module, path in FILES.items() if "cross_entropy(" in path.read_text()] == [
        "sr2.experiments.tasks"
    ]


def test_optimizers_are_asked_in_one_place() -> None:
    """What differs from optimizer to optimizer is `OptimizerView`'s to know."""
    asking = (
        "getattr(self.optimizer",
        "hasattr(self.optimizer",
        "isinstance(self.optimizer",
        "isinstance(optimizer, SR2",
    )
    found = {m for m, path in FILES.items() if any(words in path.read_text() for words in asking)}
    assert found == {"sr2.experiments.run.view"}


def test_no_test_file_imports_another() -> None:
    for path in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not any(part.startswith("test_") for part in (node.module or "").split(".")), path.name


MODULES = [m.name for m in pkgutil.walk_packages(sr2.experiments.__path__, "sr2.experiments.")]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    import torch

    module = importlib.import_module(name)
    torch.manual_seed(0)
    result = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
