"""The house rules for sr2.export: what it imports, what it costs, and that its examples run."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sr2.export

SOURCE = Path(sr2.export.__file__).parent
MODULES = ["sr2.export", *(f"sr2.export.{m.name}" for m in pkgutil.iter_modules(sr2.export.__path__))]
LAZY = {"safetensors", "onnx", "onnxruntime", "onnxscript"}


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_it_imports_torch_numpy_and_itself(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    lazy = {name.partition(".")[0] for function in inside for name, _ in imports(function)}
    for name, level in imports(tree):
        first = name.partition(".")[0]
        assert level <= 1 or (level == 2 and name in ("files", "telling")), (
            f"{path.name} imports from outside sr2.export"
        )
        if level == 0 and first not in sys.stdlib_module_names:
            assert first in {"torch", "numpy"} or (first in LAZY and first in lazy), f"{path.name} imports {name}"


def test_import_sr2_does_not_import_it():
    code = "import sys, sr2; print([n for n in sys.modules if n.startswith(('sr2.export', 'safetensors', 'onnx'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_safetensors_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModuleNotFoundError, match=r"save and load need safetensors: pip install 'sr2\[export\]'"):
        sr2.export.save(nn.Linear(2, 2), tmp_path / "w")


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    torch.manual_seed(0)
    names = {"torch": torch, "nn": nn}
    assert doctest.testmod(importlib.import_module(name), extraglobs=names).failed == 0


@pytest.mark.parametrize("name", sr2.export.__all__)
def test_every_public_name_has_an_example(name):
    assert ">>>" in inspect.getdoc(getattr(sr2.export, name))


def test_the_public_names():
    assert set(sr2.export.__all__) == {"shrink", "save", "load", "sparse_layers", "semi_structured", "to_onnx"}
