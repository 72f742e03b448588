"""The report's files, and its page in a real browser: two widths, light and dark."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sr2.experiments import commands
from sr2.experiments.errors import UserError
from sr2.experiments.paper.recipes import recipe
from sr2.experiments.paper.summary import summary, write_paper_report
from sr2.experiments.report import page as report
from sr2.experiments.report.charts import charts
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import RunRecord
from tests.experiments.tools.synthetic import make_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
EVIL = "<script>alert('x')</script>&\"</script>"

# Runs in the page after it is drawn: points at every figure, sorts the table, and leaves what it saw in the DOM.
PROBE = """
<script>
const errors = [];
addEventListener("error", e => errors.push(e.message));
addEventListener("load", () => setTimeout(() => {
  const seen = {errors, width: innerWidth, scroll: document.documentElement.scrollWidth, tips: 0, small: 0, plates: []};
  seen.background = getComputedStyle(document.body).backgroundColor;
  document.querySelectorAll(".plate").forEach(plate => {
    const drawn = [];
    plate.querySelectorAll(".panel svg").forEach(svg => {
      drawn.push(svg.querySelectorAll(".series path, .series rect").length);
      const box = svg.getBoundingClientRect();
      for (let i = 0; i < 400 && tip.hidden; i++) {
        const clientX = box.left + box.width * (i % 20) / 20, clientY = box.top + box.height * i / 400;
        svg.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY}));
      }
      seen.tips += !tip.hidden && tip.textContent.includes("l1 1e-");
      svg.dispatchEvent(new PointerEvent("pointerleave"));
      svg.querySelectorAll("text").forEach(text => {
        const t = text.getBoundingClientRect();
        seen.small += t.left < -1 || t.right > innerWidth + 1;
      });
    });
    seen.plates.push({drawn, legend: plate.querySelectorAll(".legend > span").length});
  });
  const button = document.querySelectorAll("table.sortable th button")[1];
  const value = row => Number(row.cells[1].dataset.value);
  const column = () => [...document.querySelectorAll("table.sortable tbody tr")].map(value);
  button.click();
  seen.down = column();
  button.click();
  seen.up = column();
  seen.svgColor = getComputedStyle(document.querySelector(".plate .series path")).stroke;
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(seen);
  parent.document.body.append(out);
}, 500));
</script>
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    root = tmp_path_factory.mktemp("runs")
    grid = [RunConfig.of(optimizer=name, lam=lam, epochs=20) for name in ("sr2", "proxgen") for lam in (1e-4, 1e-3)]
    runs = [make_run(root, config) for config in grid]
    runs.append(make_run(root, RunConfig.of(optimizer="proxsgd", lam=1e-3, epochs=20), stop=4))
    (runs[0].path / "certificate.json").write_text(json.dumps({"stationarity": 1.5e-3, "note": EVIL}))
    return runs


@pytest.fixture(scope="module")
def page(records: list[RunRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write_report(records, tmp_path_factory.mktemp("report") / "new" / "folder")


def test_everything_is_written(page: Path, records: list[RunRecord]) -> None:
    assert page.name == "index.html"
    names = {plate.name for chart in charts(records) for plate in chart.plates}
    written = {str(path.relative_to(page.parent)) for path in page.parent.rglob("*") if path.is_file()}
    figures = {f"figures/{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert written == {"index.html", "tables.md", "tables.tex", "tables.csv"} | figures


def test_the_page_needs_nothing_but_itself(page: Path) -> None:
    text = page.read_text()
    assert "{{" not in text
    assert not re.search(r"\bsrc=|@import|url\(|<link", text)
    assert re.findall(r"https?://[^\"'\s]+", text) == ["http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"]
    links = set(re.findall(r'href="([^"#]+)"', text))
    assert all((page.parent / link).is_file() for link in links)


def test_the_page_is_the_same_each_time(page: Path, records: list[RunRecord]) -> None:
    again = report.write_report(records[::-1], page.parent)
    first = page.read_text()
    assert again.read_text() == first


def test_the_page_says_where_runs_come_from_and_which_are_unfinished(page: Path) -> None:
    text = html.unescape(page.read_text())
    assert "5 runs, 1 of them unfinished" in text
    assert "unfinished: epoch 4 of 20" in text
    assert "sr2 train --epochs 20 --lam 0.0001 --optimizer proxgen" in text
    for fact in ("0123abc", "2.13.0", "a made-up CPU", "stationarity", "0.0015"):
        assert fact in text


def test_the_runs_say_which_weights_which_rate_and_which_seed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, RunConfig.of(epochs=2, optimizer="adamw", lr=3e-3, seed=seed)) for seed in (0, 1)]
    text = report.render(runs, [], [], "a report")
    assert "accuracy %, last iterate" in text
    assert "accuracy %, average<" not in text
    assert ">3e-3<" in text
    assert all(f"seed {seed}</a>" in text for seed in (0, 1))
    for run in runs:
        assert run.result is not None
        run.result["average_accuracy"] = 91.23
    text = report.render(runs, [], [], "a report")
    assert "accuracy %, average<" in text
    assert ">91.23<" in text


def test_of_equal_budgets_the_headline_names_the_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"SGD": (98.98, 0.0), "GMP": (98.15, 94.08), "SR2": (98.80, 94.08 - 1e-9), "L1": (95.0, 99.0)}
    score = SimpleNamespace(unit="%", name="accuracy", text=lambda value: f"{value:.2f} %")
    monkeypatch.setattr(report, "_mean", lambda group, key: figures[group.label][key == "zero_pct"])
    groups: Any = [SimpleNamespace(config=RunConfig(), finished=True, score=score, label=name) for name in figures]
    (line,) = report._highlights(groups)
    assert "most accurate SGD, 98.98 %" in line
    assert "sparsest within one point of it SR2, 98.80 % with 94.08 % zeros" in line


def test_the_command_makes_the_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.of(
        regularizer="lp", reg=("p=0.5",), augment=False, sigma_min=1e-3, rho="none", compile=True, seed=3
    )
    words = report.command(config).split()
    assert words[:2] == ["sr2", "train"]
    asked: list[RunConfig] = []
    monkeypatch.setattr("sr2.experiments.run.one.train", lambda made, *_: asked.append(made))
    assert commands.run(words[1:]) == 0
    assert asked == [config]


def test_what_users_wrote_is_escaped(tmp_path: Path) -> None:
    config = RunConfig.of(epochs=2, regularizer=f"mod:{EVIL}", data=f"my:{EVIL}", optimizer=f"o:{EVIL}")
    run = make_run(tmp_path / "runs", RunConfig.of(epochs=2), env={"device": EVIL, EVIL: EVIL})
    run = dataclasses.replace(run, config=config)
    text = report.write_report([run], tmp_path / "out", title=EVIL).read_text()
    assert EVIL not in text
    assert "alert('x')</script>" not in text
    assert text.count("</script>") == 2


def test_no_runs_is_a_sentence_and_the_paper_without_runs_is_all_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to report on"):
        report.write_report([], tmp_path)
    text = write_paper_report([], tmp_path).read_text()
    assert "0 of the paper" in text
    assert text.count(">not run<") == 45


def test_the_papers_report_leaves_other_runs_out(tmp_path: Path) -> None:
    cell = make_run(tmp_path / "runs", recipe("cifar10-resnet34-sr2-l1-1e-4").having(epochs=2))
    other = make_run(tmp_path / "runs", RunConfig.of(epochs=2))
    text = html.unescape(write_paper_report([cell, other], tmp_path / "out").read_text())
    assert "1 runs; 1 of the paper's 45 cells run" in text
    assert text.count(">not run<") == 44
    assert "digits" not in text
    assert (tmp_path / "out" / "summary.md").read_text() == summary([cell])


def test_the_papers_figures_have_the_longest_runs(tmp_path: Path) -> None:
    cell = recipe("cifar10-resnet34-sr2-l1-1e-4").having(epochs=6)
    runs = [make_run(tmp_path / "runs", cell.having(gamma1=gamma1)) for gamma1 in (5.56, 1.5)]
    short = make_run(tmp_path / "runs", cell.having(epochs=2, momentum=0.9))
    text = html.unescape(write_paper_report([*runs, short], tmp_path / "out").read_text())
    tables_, figures = text[: text.index("Figures</h2>")], text[text.index('id="data">') :]
    assert "momentum=0.9" in tables_
    assert "gamma1=1.5" in figures
    assert "momentum=0.9" not in figures
    assert (tmp_path / "out" / "figures" / "sigma-cifar10-resnet34.png").exists()


def test_a_place_that_cannot_be_written_is_a_sentence(records: list[RunRecord], tmp_path: Path) -> None:
    place = tmp_path / "a-file"
    place.write_text("")
    for out in (place, place / "below"):
        with pytest.raises(UserError, match=rf"^{out} cannot be written: Not a directory$"):
            report.write_report(records, out)


def test_certificates_have_four_digits_and_their_intervals(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", RunConfig.of(epochs=2))
    found = {"bound": 3.95123456, "batches": 11, "lipschitz": None}
    found |= {
        "step_term": {"mean": 3.530001, "half_width": 0.4200012},
        "variance_term": {"mean": 1, "half_width": None},
    }
    path = run.path / "certificate.json"
    path.write_text(json.dumps(found))
    text = report.render([run], [], [], "a report")
    for fact in ("3.951", "11", "3.53 ± 0.42", "1 ± unknown"):
        assert f"<dd>{fact}</dd>" in text
    for damage in ("[1]", "{"):
        path.write_text(damage)
        assert f"{path} is damaged" in report.render([run], [], [], "a report")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium binary was found")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(page: Path, records: list[RunRecord], tmp_path: Path, width: int, scheme: str) -> None:
    seen = probe(page, tmp_path, width, scheme)
    assert seen["errors"] == []
    assert seen["width"] == width
    assert seen["scroll"] <= width, "the page scrolls sideways"
    assert seen["small"] == 0, "a text of a figure is cut off by the window"
    plates = [plate for chart in charts(records) for plate in chart.plates]
    assert len(seen["plates"]) == len(plates)
    for plate, drawn in zip(plates, seen["plates"], strict=True):
        assert len(drawn["drawn"]) == len(plate.panels), plate.name
        assert all(count > 0 for count in drawn["drawn"]), plate.name
        assert drawn["legend"] == len(plate.legend)
    assert seen["tips"] == sum(len(plate.panels) for plate in plates), "a hover shows no value"
    assert seen["up"] == sorted(seen["down"]) == seen["down"][::-1]
    dark = sum(map(int, re.findall(r"\d+", seen["background"])[:3])) < 200
    assert dark == (scheme == "dark")


def probe(page: Path, folder: Path, width: int, scheme: str) -> dict[str, Any]:
    """What PROBE saw in a headless browser; a message on the console fails."""
    inner = html.escape(page.read_text().replace("<title>", PROBE + "<title>", 1))
    frame = f'<iframe srcdoc="{inner}" style="width: {width}px; height: 900px; border: 0"></iframe>'
    copy = folder / "page.html"  # framed, as no window is as narrow as a phone
    copy.write_text(f'<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">{frame}')
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=4000"
    look = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    command = [str(CHROMIUM), *flags.split(), look, "--window-size=1400,1000", f"--user-data-dir={folder / 'user'}"]
    done = subprocess.run([*command, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen
