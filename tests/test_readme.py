"""The README keeps its word: its Python runs in order, its commands and flags exist, its table is that of the code."""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch

import sr2
from sr2.cli import main
from sr2.experiments.paper.summary import summary
from sr2.experiments.run.store import find_runs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TINY = {  # what makes a command of the README small enough to run here: the last of two equal flags counts
    "train": ["--model", "mlp", "--epochs", "1", "--batch", "300"],
    "compare": ["--model", "mlp", "--epochs", "1", "--batch", "400", "--lams", "1e-3", "--seeds", "0"],
    "bench": ["--steps", "1", "--repeats", "1", "--parameters", "1000"],
}


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("sr2 ")]


def test_the_python_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY["train"]]) == 0  # one of the page's examples reads a run
    names = {}
    said = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks("python"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, "README.md", "exec"), names)
            said.append(out.getvalue())
    assert len(said) > 10
    # the first one prints what stands below it, up to rounding on another machine
    (table,) = [block for block in blocks("text") if block.startswith("parameter")]
    here, there = said[0].splitlines(), table.splitlines()
    assert [line.split()[0] for line in here] == [line.split()[0] for line in there]
    shares = [float(lines[-1].split()[-2]) for lines in (here, there)]
    assert shares[0] == pytest.approx(shares[1], abs=5)


def test_the_first_example_has_twelve_lines():
    assert len(blocks("python")[0].splitlines()) == 12


def helps(capsys, *argv):
    with pytest.raises(SystemExit) as stopped:
        main([*argv, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", COMMANDS)
def test_every_flag_of_a_command_exists(line, capsys):
    words = shlex.split(line)[1:]
    depth = 3 if words[:2] == ["paper", "run"] else 2 if words[0] in ("data", "paper") else 1
    said = helps(capsys, *words[:depth])
    for flag in (word for word in words if word.startswith("--")):
        assert f"{flag} " in said, f"sr2 {' '.join(words[:depth])} has no {flag}"


def test_every_command_of_the_table_exists(capsys):
    said = helps(capsys)
    rows = re.findall(r"^\| `sr2 (\w+)", README, re.MULTILINE)
    assert sorted(rows) == sorted(re.findall(r"• (\w+) ", said))


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("results").symlink_to(ROOT / "results")
    ran = []
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        if words[:2] == ["paper", "run"]:
            continue  # needs CIFAR
        assert main([*words, *TINY.get(words[0], [])]) == 0, line
        ran.append(words[0])
    assert {"train", "compare", "prune", "report", "bench", "paper"} == set(ran)
    assert (tmp_path / "runs" / "report" / "index.html").exists()
    assert "not run" in capsys.readouterr().out


def test_the_recipe_that_is_named_exists():
    from sr2.experiments.paper.recipes import cells

    named = re.findall(r"sr2 paper run (\S+)", README)
    assert named
    assert set(named) <= set(cells())


def test_the_results_are_those_of_the_folder():
    (table,) = re.findall(r"<!-- results -->\n(.*?)<!-- /results -->", README, re.DOTALL)
    made = summary(find_runs([ROOT / "results"]))
    assert table == made, f"between the README's markers there should be\n{made}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links or page != "README.md"
    for link in links:
        assert (ROOT / link).exists(), f"{page} links to {link}"


def test_the_demo_is_the_makefiles():
    """The numbers that the page states about the demo are those of its command."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    (command,) = re.findall(r"sr2 compare (.*?--runs runs/demo)", recipe, re.DOTALL)
    for flag in ("--epochs 30", "--seeds 0 1 2", "--densities 0.1 0.05 0.02"):
        assert flag in command
    for rate in ("adamw,lr=3e-3", "sgd,lr=0.3", "density=0.1,lr=0.1", "density=0.05,lr=0.1", "density=0.02,lr=1 "):
        assert rate in command
    for page in (README, (ROOT / "docs" / "results.md").read_text(encoding="utf-8")):
        assert "AdamW 3e-3, SGD 0.3, GMP 0.1, at 98 % 1" in page
        rows = re.findall(r"^\| (none|\d\d) .*\| (SGD|AdamW|GMP|SR2) \|.* 3 × 30 \|$", page, re.MULTILINE)
        budgets = [(zeros, optimizer) for zeros in ("90", "95", "98") for optimizer in ("GMP", "SR2")]
        assert rows == [("none", "SGD"), ("none", "AdamW"), *budgets]


def test_the_citation_is_valid_yaml_with_the_paper():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for line in ("cff-version: 1.2.0", f"version: {sr2.__version__}", "type: software", "license: MIT"):
        assert f"\n{line}\n" in f"\n{text}"
    assert "A Stochastic Proximal Method for Nonsmooth Regularized Finite Sum Optimization" in text
    assert "\t" not in text
