"""The README keeps its word: its example prints what stands below it, its links lead somewhere, it is complete."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

import sr2

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_stands_below_it():
    """Up to rounding on another machine."""
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (table,) = re.findall(r"^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    out = io.StringIO()
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(out):
        exec(compile(example, "README.md", "exec"), {})
    here, there = out.getvalue().splitlines(), table.splitlines()
    assert [line.split()[0] for line in here] == [line.split()[0] for line in there]
    shares = [float(lines[-1].split()[-2]) for lines in (here, there)]
    assert shares[0] == pytest.approx(shares[1], abs=5)


def test_it_is_one_page_and_nothing_is_left_to_fill():
    assert len(README.splitlines()) <= 130
    assert "TO FILL" not in README


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
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "AdamW 3e-3, SGD 0.3, GMP 0.1, at 98 % 1" in page
    rows = re.findall(r"^\| (none|\d\d) .*\| (SGD|AdamW|GMP|SR2) \| (\S+) .* 3 × 30 \|$", page, re.MULTILINE)
    budgets = [(zeros, optimizer) for zeros in ("90", "95", "98") for optimizer in ("GMP", "SR2")]
    assert [row[:2] for row in rows] == [("none", "SGD"), ("none", "AdamW"), *budgets]
    (stated,) = re.findall(r"`make demo`\) \| (.*?) %", README)
    found = [float(number.strip("*")) for number in stated.split(" / ")]
    accuracies = [float(number.strip("*")) for _, optimizer, number in rows if optimizer == "SR2"]
    assert found == [round(number, 1) for number in accuracies]


def test_the_citation_is_valid_yaml_with_the_paper():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for line in ("cff-version: 1.2.0", f"version: {sr2.__version__}", "type: software", "license: MIT"):
        assert f"\n{line}\n" in f"\n{text}"
    assert "A Stochastic Proximal Method for Nonsmooth Regularized Finite Sum Optimization" in text
    assert "\t" not in text


def test_the_newest_release_of_the_changelog_is_this_version_on_the_day_of_the_citation():
    changes, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    (day,) = re.findall(r'^date-released: "(.*)"$', citation, re.MULTILINE)
    assert re.findall(r"^## (\d.*)$", changes, re.MULTILINE)[0] == f"{sr2.__version__} ({day})"
