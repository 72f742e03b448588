"""The pages keep their word: each Python block runs alone, flags and names exist, the site builds and every link leads
somewhere.

A block that needs more than the library has a title that says so, which the reader sees too:

    ```python title="needs CUDA"
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import sr2
from sr2.cli import main
from sr2.experiments.paper.recipes import cells
from sr2.experiments.paper.summary import summary
from sr2.experiments.run.store import find_runs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
TINY = {  # what makes a command small enough to run here: the last of two equal flags counts
    "train": ["--model", "mlp", "--epochs", "1", "--batch", "300"],
    "compare": ["--model", "mlp", "--epochs", "1", "--batch", "400", "--lams", "1e-3", "--seeds", "0"],
}
NEEDS = {
    "CUDA": torch.cuda.is_available,
    "onnx": lambda: all(map(importlib.util.find_spec, ("onnx", "onnxscript"))),
    "lightning": lambda: importlib.util.find_spec("lightning"),
    "several processes": lambda: False,  # tests/optim has scripts that start them
}
BLOCK = re.compile(r"^```python(?: title=\"needs ([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(*block.groups(), id=f"{name}:{text[: block.start()].count(chr(10)) + 1}")
    for name, text in PAGES.items()
    for block in BLOCK.finditer(text)
]
SHELL = re.compile(r"^```(?:sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text):
    """The commands of a page: lines of its blocks, with those that continue them, and what stands between backticks."""
    joined = (re.sub(r"\s*\\?\n +", " ", block) for block in SHELL.findall(text))
    yield from (line for block in joined for line in block.splitlines() if line.startswith("sr2 "))
    yield from (" ".join(words.split()) for words in re.findall(r"`(sr2 [a-z][^`]* --[^`]*)`", text))


COMMANDS = sorted({command for text in PAGES.values() for command in commands(text)})


@pytest.mark.parametrize(("needs", "block"), BLOCKS)
def test_a_block_runs_alone(needs, block, tmp_path, monkeypatch):
    if needs is not None and not NEEDS[needs]():
        pytest.skip(f"it needs {needs}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        exec(compile(block, "block", "exec"), {"__name__": "block"})


def test_the_guides_have_blocks():
    assert len(BLOCKS) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_exists(command, capsys):
    words = shlex.split(command)[1:]
    depth = 2 if words[0] in ("data", "paper") else 1
    if words[:2] == ["paper", "run"] and len(words) > 2 and not words[2].startswith(("-", "…")):
        depth = 3
    with pytest.raises(SystemExit) as stopped:
        main([*words[:depth], "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for flag in (word for word in words if word.startswith("--")):
        assert f"{flag} " in said, f"sr2 {' '.join(words[:depth])} has no {flag}"


@pytest.mark.torture
def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("results").symlink_to(ROOT / "results")
    blocks = [block.replace("\\\n", " ") for text in PAGES.values() for block in SHELL.findall(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    ran = []
    for words in (shlex.split(line)[1:] for line in lines if line.startswith("sr2 ") and "--device cuda" not in line):
        if words[:2] == ["paper", "run"] or "(default" in words or "120" in words:
            continue  # needs CIFAR, or is long: it has a test of its own
        assert main([*words, *TINY.get(words[0], [])]) == 0, words
        ran.append(words[0])
    assert {"train", "compare", "prune", "report", "paper"} == set(ran)
    assert (tmp_path / "runs" / "report" / "index.html").exists()
    assert "not run" in capsys.readouterr().out


def test_the_recipes_that_are_named_exist():
    named = {cell for text in PAGES.values() for cell in re.findall(r"sr2 paper run ([a-z]\S+)", text)}
    assert named
    assert named <= set(cells())


def test_the_grid_of_lambdas_has_all_rows_of_its_command():
    page = PAGES["docs/results.md"].partition("## Lambdas")[2]
    assert all(
        words in page for words in ("--epochs 120", "sr2,eta2=0.9 proxgen,lr=0.3 proxsgd", "--lams 3e-4 1e-3 2e-3")
    )
    assert len(re.findall(r"^\| (?:l1|l0|none)\b.*1 × 120 \|$", page, re.MULTILINE)) == 18


def test_the_results_are_those_of_the_folder():
    (table,) = re.findall(r"<!-- results -->\n(.*?)<!-- /results -->", PAGES["docs/paper.md"], re.DOTALL)
    made = summary(find_runs([ROOT / "results"]))
    assert table == made, f"between the markers of docs/paper.md there should be\n{made}"


def test_the_table_of_regularizers_is_the_codes():
    page = PAGES["docs/regularizers.md"]
    words = {True: "yes", False: "no"}
    public = {name: getattr(sr2, name) for name in sr2.regularizers.__all__ if name != "Regularizer"}
    classes = {name: c for name, c in public.items() if issubclass(c, sr2.Regularizer)}
    flags = {name: [words[flag] for flag in (c.convex, c.separable, c.diagonal)] for name, c in classes.items()}
    flags["Ridge"] = 3 * ["as R₁"]
    rows = re.findall(r"^\| `(\w+)\(.*\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert {name: list(said) for name, *said in rows} == flags
    assert sorted(re.findall(r"\(figures/prox-(\w+)\.png\)", page)) == sorted(classes)


def test_formulas_are_plain_text():
    """A page fetches nothing, so no renderer of LaTeX: docstrings are read in a terminal too."""
    for path in (ROOT / "src").rglob("*.py"):
        assert ".. math::" not in path.read_text(encoding="utf-8"), f"{path.name}: indent the formula as plain text"


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    site, build = tmp_path / "site", [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    for command in ([*build, str(site)], [sys.executable, str(DOCS / "tools" / "check_site.py"), str(site)]):
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    help_page = (site / "cli.html").read_text(encoding="utf-8")
    assert "--regularizer STR" in help_page
    assert "sr2 paper run" in help_page


def test_the_check_sees_a_broken_link_and_a_fetched_file(tmp_path):
    spec = importlib.util.spec_from_file_location("check_site", DOCS / "tools" / "check_site.py")
    check_site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_site)
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="a.html#top"></a><a href="https://x.org"></a>')
    assert check_site.mistakes(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<a href="c.html"></a><a href="a.html#gone"></a><script src="https://x.org/s.js"></script>'
    )
    assert check_site.mistakes(tmp_path) == [
        "b.html links to c.html, which does not exist",
        "b.html links to a.html#gone, which has no such anchor",
        "b.html loads https://x.org/s.js",
    ]
