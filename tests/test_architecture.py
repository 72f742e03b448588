"""The plan of the house: imports point one way, the library needs torch and numpy alone, every public name is shown."""

import ast
import doctest
import graphlib
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sr2
import sr2.optim
import sr2.regularizers

from . import optimizers, registry
from .hook import HOOK

SOURCE = Path(sr2.__file__).parent
FLOORS = [
    "checks",
    "numerics",
    "telling",
    "regularizers",
    "optim",
    "zeros",
    "export",
    "channels",
    "experiments",
    "cli",
]  # each may import those before it
DESIGNED = [
    *("SR2", "ProxGEN", "ProxSGD"),
    *("L1", "L0", "Lp", "L0Ball", "ElasticNet", "MCP", "SCAD", "Box", "GroupL2", "GroupL0", "NM", "Nuclear", "Rank"),
    *("sparsity", "prune_", "param_groups", "Regularizer"),
]
OPTIMIZERS = [n for n, c in vars(sr2.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)]
REGULARIZERS = [name for name in sr2.regularizers.__all__ if name not in ("Regularizer", "Heads", "Channels")]
PUBLIC = {name: getattr(sr2, name) for name in sr2.__all__}
PARTS = {n: c for m in PUBLIC.values() if inspect.ismodule(m) for n in m.__all__ if inspect.isclass(c := getattr(m, n))}


def modules(package=""):
    """Every file under src/sr2/<package> as (name parts, syntax tree)."""
    for path in sorted((SOURCE / package).rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield parts, ast.parse(path.read_text(), str(path))


def imported(parts, tree):
    """The absolute names that a file imports, as tuples; `if TYPE_CHECKING` and imports inside functions included."""
    package = parts if parts[-1] == "__init__" else parts[:-1]
    package = package[:-1] if parts[-1] == "__init__" else package
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module or "").split(".")) if node.module else base
            yield from ((*base, alias.name) for alias in node.names)


def floor(parts):
    return parts[1] if len(parts) > 1 and parts[0] == "sr2" else None


def test_imports_point_one_way():
    seen = set()
    for parts, tree in modules():
        here = floor(parts)
        if here not in FLOORS:
            continue
        seen.add(here)
        for name in imported(parts, tree):
            there = floor(name)
            if there in FLOORS:
                assert FLOORS.index(there) <= FLOORS.index(here), f"{'.'.join(parts)} imports {'.'.join(name)}"
            if here != "cli" and name == ("sr2",):
                raise AssertionError(f"{'.'.join(parts)} imports sr2, which imports it")
    assert {"regularizers", "optim"} <= seen


def test_the_library_never_imports_the_experiments():
    for parts, tree in modules():
        if floor(parts) not in ("experiments", "cli", "__main__"):  # python -m sr2 is the command line's door
            for name in imported(parts, tree):
                assert floor(name) not in ("experiments", "cli"), f"{'.'.join(parts)} imports {'.'.join(name)}"


def test_regularizers_import_torch_only():
    for parts, tree in modules("regularizers"):
        for name in imported(parts, tree):
            ours = name[0] == "sr2" and name[1] in ("regularizers", "numerics", "checks")
            known = ("torch", "triton") if "kernels" in parts[-1] else ("torch",)
            allowed = name[0] in known or name[0] in sys.stdlib_module_names or ours
            assert allowed, f"{'.'.join(parts)} imports {'.'.join(name)}"


def test_optim_imports_torch_and_of_regularizers_no_regularizer():
    tools = [("sr2", "regularizers", "base"), ("sr2", "regularizers", "selection")]
    for parts, tree in modules("optim"):
        for name in imported(parts, tree):
            if name[0] == "sr2":
                assert name[1] in ("optim", "checks", "numerics", "telling") or name[:3] in tools, name
            else:
                known = name[0] in ("torch", "numpy", "triton") or name[0] in sys.stdlib_module_names
                assert known, f"{'.'.join(parts)} imports {'.'.join(name)}"


def test_optim_names_no_regularizer():
    for parts, tree in modules("optim"):
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
            assert name not in REGULARIZERS, f"{'.'.join(parts)}:{node.lineno} names {name}"


def test_no_regularizer_names_an_optimizer():
    for parts, tree in modules("regularizers"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                assert node.id not in OPTIMIZERS, f"{'.'.join(parts)}:{node.lineno}"


def test_the_designed_names_are_public():
    assert set(DESIGNED) <= set(sr2.__all__)


def test_every_regularizer_and_optimizer_is_public():
    public = {name for name in OPTIMIZERS if name != "ProximalOptimizer"}
    assert {"SR2", "L1"} < {*public, *REGULARIZERS} <= set(sr2.__all__)


@pytest.mark.parametrize("name", [n for n, c in PUBLIC.items() if n != "Regularizer" and not inspect.ismodule(c)])
def test_every_public_name_has_an_example(name):
    assert ">>>" in (inspect.getdoc(PUBLIC[name]) or ""), f"{name} has no example"


@pytest.mark.parametrize("name", PARTS)
def test_every_part_says_what_it_is(name):
    assert PARTS[name].__doc__, f"{name} has no docstring"


def test_everything_public_is_under_test():
    assert {case.name for case in optimizers.OPTIMIZERS} == {*OPTIMIZERS} - {"ProximalOptimizer"}
    alone = {"KeepZeros"}  # of certain tensors: it has tests of its own
    assert {type(case.regularizer).__name__ for case in registry.REGULARIZERS} == {*REGULARIZERS} - alone


def test_regularizer_is_documented():
    assert "prox" in (inspect.getdoc(sr2.Regularizer) or "")


def library_modules():
    names = [m.name for m in pkgutil.walk_packages(sr2.optim.__path__, "sr2.optim.")]
    return ["sr2.zeros", "sr2.optim", *(n for n in names if "kernel" not in n)]  # kernels need triton


@pytest.mark.parametrize("name", library_modules())
def test_doctests(name):
    module = importlib.import_module(name)
    torch.manual_seed(0)
    result = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_some_doctests_ran():
    finder = doctest.DocTestFinder(exclude_empty=True)
    count = sum(len(t.examples) for n in library_modules() for t in finder.find(importlib.import_module(n)))
    assert count > 20


def test_no_test_file_imports_another():
    """What several files use is in tools.py, oracles.py, registry.py, optimizers.py or beside its users."""
    root = Path(__file__).parents[1]
    for path in sorted((root / "tests").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        for name in imported(parts, ast.parse(path.read_text(), str(path))):
            files = [n for n in (name, name[:-1]) if n and root.joinpath(*n).with_suffix(".py").is_file()]
            assert not any(n[-1].startswith("test_") for n in files), f"{'/'.join(parts)} imports {'.'.join(name)}"


def test_the_import_graph_has_no_cycle():
    """Of files, imports inside functions and for types alone included."""
    files = {".".join(parts).removesuffix(".__init__"): (parts, tree) for parts, tree in modules()}
    graph = {here: set() for here in files}
    for here, (parts, tree) in files.items():
        for name in imported(parts, tree):
            there = next((n for n in (".".join(name), ".".join(name[:-1])) if n in files), here)
            graph[here] |= {there} - {here, "sr2"}
    order = graphlib.TopologicalSorter(graph)
    order.prepare()


def test_no_file_is_long():
    long = {p: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 350}
    assert not long


def files_of_a_step(**options):
    """Those that a step runs through: not the first step, which has more to do."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model, x, y = nn.Sequential(*layers), torch.randn(32, 64), torch.randint(10, (32,))
    optimizer = sr2.SR2(model, sr2.L1(1e-4), **options)
    closure = lambda: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    for _ in range(6):
        optimizer.step(closure)
    files = set()

    def visit(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            files.add(Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix())

    before = sys.getprofile()
    sys.setprofile(visit)
    try:
        optimizer.step(closure)
    finally:
        sys.setprofile(before)
    assert optimizer.last_step.accepted
    return files


@pytest.mark.parametrize("options", [{}, {"foreach": False}], ids=str)
def test_a_step_of_algorithm_1_visits_ten_files(options):
    """It can be followed from line to line: R and its base, sums, the optimizer and its base, what it remembers, the
    two evaluations, the rule, the move and its base. A file that is opened for one more line is one too many."""
    files = files_of_a_step(**options, **sr2.SR2.paper_defaults())
    assert {"optim/sr2.py", "optim/parts/rules.py", "regularizers/l1.py"} < files
    assert len(files) <= 10


def test_each_part_of_the_defaults_is_one_file_more():
    """And the way of small tensors that have a state."""
    parts = {f"optim/parts/{name}.py" for name in ("metrics", "directions", "steering", "averaging")}
    assert files_of_a_step() - files_of_a_step(**sr2.SR2.paper_defaults()) == parts | {"optim/moves/laid.py"}


def test_every_module_says_what_it_is():
    for parts, tree in modules():
        if parts[1] in ("regularizers", "optim", "zeros"):
            assert ast.get_docstring(tree), f"{'.'.join(parts)} has no docstring"


def test_importing_sr2_needs_torch_and_numpy_alone():
    code = HOOK + (
        "import torch, sr2\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = sr2.SR2(model, sr2.L1(0.1), sigma=1.0)\n"
        "optimizer.step(lambda: model(torch.ones(2, 3)).square().mean())\n"
        "print([n for n in sys.modules if n.startswith(('sr2.experiments', 'sr2.cli'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["rich", "sklearn", "PIL"])
def test_the_hook_of_the_test_above_bites(name):
    done = subprocess.run([sys.executable, "-c", HOOK + f"import {name}"], capture_output=True, text=True, check=False)
    assert f"No module named '{name}'" in done.stderr
