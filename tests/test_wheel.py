"""The wheel builds, holds what it must, and steps where only torch and numpy are."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import sr2

from .hook import HOOK

ROOT = Path(__file__).parents[1]
DATA = ("sr2/experiments/report/page.html", "sr2/experiments/paper/tables.json")


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (path,) = folder.glob("sr2-*.whl")
    target = folder / "target"
    run(sys.executable, "-m", "pip", "install", *quiet, "--no-deps", "--no-index", "--target", target, path)
    return path, target


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    path, _ = wheel
    assert path.name == f"sr2-{sr2.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (metadata,) = [n for n in names if n.endswith("METADATA")]
        words = archive.read(metadata).decode()
    assert {n.split("/")[0].split("-")[0] for n in names} == {"sr2"}
    for expected in (
        "sr2/__init__.py",
        "sr2/py.typed",
        "sr2/optim/sr2.py",
        "sr2/regularizers/l1.py",
        "sr2/zeros.py",
        *DATA,
    ):
        assert expected in names
    assert any(n.endswith("LICENSE") for n in names)
    needed = [line for line in words.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert sorted(line.split()[1].split(">")[0] for line in needed) == ["numpy", "torch"]


def test_the_sdist_holds_what_make_test_needs(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    with tarfile.open(tmp_path / f"sr2-{sr2.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = (ROOT / name for name in ("src", "tests", "docs", "examples", "benchmarks", "results"))
    needed = [p for folder in folders for p in folder.rglob("*.*") if p.is_file() and "__pycache__" not in p.parts]
    files = ("Makefile", "constraints.txt", "pyproject.toml", "mkdocs.yml", "README.md", "CITATION.cff", "LICENSE")
    assert names >= {*files, *(path.relative_to(ROOT).as_posix() for path in needed)}


def test_a_step_from_the_installed_wheel(wheel, tmp_path):
    _, target = wheel
    code = HOOK + (
        f"sys.path.insert(0, {str(target)!r})\n"
        "import torch, sr2\n"
        f"assert sr2.__file__.startswith({str(target)!r}), sr2.__file__\n"
        "torch.manual_seed(0)\n"
        "model, x = torch.nn.Linear(8, 1), torch.randn(32, 8)\n"
        "optimizer = sr2.SR2(model, sr2.L0(1e-2), sigma=1.0)\n"
        "for _ in range(20):\n"
        "    loss = optimizer.step(lambda: (model(x) - x[:, :1]).square().mean())\n"
        "print(sr2.__version__, optimizer.counts['accepted'] > 5, sr2.sparsity(model).zeros > 0)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    out = run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    assert out.split() == [sr2.__version__, "True", "True"]
