"""The command line as a user meets it: help, versions, mistakes, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sr2
from sr2.cli import main
from sr2.experiments.commands import COMMANDS
from sr2.experiments.run.config import FIRST_OPTIONS, RunConfig
from tests.experiments.tools.runs import without_sums


def helps(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*argv, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    said = helps(capsys)
    assert all(command in said for command in COMMANDS if " " not in command)


@pytest.mark.parametrize("above", ["", "data", "paper"])
def test_a_list_of_commands_has_one_line_for_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = helps(capsys, *above.split()).partition("(required)")[2]
    lines = [line for row in listed.splitlines() if (line := row.strip(" │╰─╯-"))]  # a frame, as the terminal can
    names = [command.split()[-1] for command in COMMANDS if command.rpartition(" ")[0] == above]
    assert [re.fullmatch(r"• (\w+) +\w.*\.", line)[1] for line in lines] == names  # type: ignore[index]


@pytest.mark.parametrize("arguments", ["--help", "data --help", "paper --help", "trian", ""])
def test_a_list_of_commands_imports_no_torch(arguments: str, tmp_path: Path) -> None:
    """Whose import takes a second, and most of it."""
    code = "import sys; from sr2.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True)
    assert done.returncode == (0 if "--help" in arguments else 2)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert f"usage: sr2 {command}" in helps(capsys, *command.split())


def test_every_setting_is_a_flag_with_words(capsys: pytest.CaptureFixture[str]) -> None:
    said = helps(capsys, "train")
    for name in {**RunConfig().flat(), **dict.fromkeys(FIRST_OPTIONS), "opt": ()}:
        flag = name.replace("_", "-")
        assert f"--{flag} " in said or f"--no-{flag} " in said
    assert "lambda, the weight of the regularizer" in said


def test_help_has_groups_with_the_four_that_matter_first_and_real_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    said = helps(capsys, "train")
    first, *groups = re.split(r"^ (?:\w+ )?options +$", said, flags=re.MULTILINE)[1:]
    said = " ".join(said.split())
    assert re.findall(r" --(\w+)", first) == ["help", "data", "model", "lam", "density"]
    assert len(groups) == 4
    for option, default in {
        "eta2": "0.99 in Algorithm 1",
        "gamma1": "5.56 in Algorithm 1",
        "rule": r"Tolerant\(.*\)",
        "momentum": "SR2 0.9, ProxGEN 0.0,.*",
        "metric": "SR2 adam, ProxGEN none, ProxSGD adam",
        "test-every": "1",
        "sigma": "auto",
        "lr": "ProxGEN 0.001,.* ProxSGD 0.06,.* GMP 0.1",
    }.items():
        assert re.search(rf"--{option} [^(]*(\([^d][^)]*\)[^(]*)*\(default: {default}\)", said), option


OWN = """
from sr2 import ProxGEN
def mine(model, regularizer, *, penalize, lr=0.5, every: int = 2):
    made = ProxGEN(model, regularizer, lr=lr, penalize=penalize)
    print("told", lr, every)
    return made
def careful():
    from sr2.rules import Ratio
    print("asked for a rule")
    return Ratio(eta1=0.1, gamma1=3.0)
"""


def test_options_reach_any_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_optimizer_of_cli.py").write_text(OWN)
    quick = ["train", "--model", "mlp", "--epochs", "1", "--batch", "400"]
    assert main([*quick, "--optimizer", "own_optimizer_of_cli:mine", "--opt", "lr=0.1", "every=3"]) == 0
    assert "told 0.1 3\n" in capsys.readouterr().out
    assert main([*quick, "--opt", "eta2=0.9", "gamma1=2"]) == 0
    assert main([*quick, "--eta2", "0.9", "--gamma1", "2.0"]) == 0
    assert "is finished already" in capsys.readouterr().out  # a flag is another way to write the same option
    assert main([*quick, "--opt", "rule=own_optimizer_of_cli:careful"]) == 0
    assert "asked for a rule" in capsys.readouterr().out
    for flags, words in {
        ("--opt", "rule=own_optimizer_of_cli:nothing"): "option 'own_optimizer_of_cli:nothing' could not be imported",
        ("--eta2", "0.9", "--opt", "eta2=0.8"): "--opt 'eta2=0.8' is not an option: it is given by --eta2 too",
        ("--opt", "eta2"): "--opt 'eta2' is not an option: write each one once, as key=value",
        ("--opt", "lr=1"): "sr2 has no option lr: it finds its own steps",
        ("--opt", "capturable=true"): "sr2 has no option capturable",
        ("--eta2", "high"): "eta2 must be",
    }.items():
        assert main([*quick, *flags]) == 2
        assert words in capsys.readouterr().err


def test_version_and_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sr2", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"sr2 {sr2.__version__}\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("train --optimizer proxsgd --regularizer l0", "L0(lam=0.001) is not convex, which ProxSGD needs"),
        ("train --data digitz", "did you mean digits"),
        ("train --model cnm", "did you mean cnn"),
        ("train --regularizer l2", "did you mean ridge?"),
        ("train --regularizer Lasso", "did you mean l1?"),
        ("train --model mynet.Net", "did you mean mynet:Net"),
        ("train --data ./mydata.py", "your own as module:callable"),
        ("prune", "name at least one run folder"),
        ("report", "name at least one run folder"),
        ("train --seed 9223372036854775808", "seed must be below 2^63"),
        ("report nowhere", "nowhere does not exist"),
        ("paper report --runs nowhere", "nowhere does not exist"),
        ("paper report", "runs does not exist"),
        ("paper list --runs nowhere", "nowhere does not exist"),
        ("data fetch cifar", "did you mean cifar10"),
        ("data check digit", "did you mean digits"),
        ("paper run cifar10-resnet34-sr2-l1-1e-5", "cifar10-resnet34-sr2-l1-1e-4"),
        ("paper run cifar10-resnet34-sr2-l1-1e-4 --optimizer proxgen", "is a cell of sr2: name one of proxgen"),
        ("paper run --seed 1 cifar10-resnet34-sr2-l1-1e-4", "name the cell first"),
        ("train --foreach maybe", "foreach must be True, False or None, and is 'maybe'"),
        ("train --opt compile=maybe", "compile must be True or False, and is 'maybe'"),
        ("train --density 0.05 --reg density=0.1", "--density 0.05 says it already: leave out --reg density=0.1"),
        ("train --runs=", "--runs is empty: name a folder"),
        ("train --runs s3://", "s3:// names no folder: add one, as s3://bucket/runs"),
        ("train --opt steps=3", "sr2 has no option steps here: it follows from the run's own settings"),
        (
            "train --regularizer json:loads",
            "json:loads needs more constants: add --reg s=…, or in a grid json:loads,s=…",
        ),
        ("compare --seeds 0 -1", "seed must be at least 0, and is -1"),
        ("compare --regularizers lp", "lp needs more constants: add --reg p=…, or in a grid lp,p=…"),
        ("bench --out .", ". is a folder: name a file, as bench.json"),
        ("bench --tasks digits_mlp", "--tasks is for --panel: add that, or leave it out"),
        ("bench --panel --batch 3", "--batch is not for --panel: leave out one of them"),
        ("bench --sparse runs --seeds 1", "--seeds is not for --sparse: leave out one of them"),
        ("bench --panel --tasks digits", "unknown task 'digits': did you mean digits_mlp?"),
        ("bench --panel --seeds", "name at least one seed of the panel"),
        ("bench --panel --seeds -1", "seeds must be at least 0, and one is -1"),
        ("data fetch mine:load", "mine:load is a data set of your own, which brings itself"),
        ("paper queue --rows", "name at least one of --rows paper defaults rates"),
        ("paper queue --minutes nan", "minutes must be above 0, and is nan"),
        ("paper queue --jobs 0", "jobs must be at least 1, and is 0"),
        ("paper queue --done nowhere --show", "nowhere does not exist: name a folder of runs, or leave out --done"),
    ],
)
def test_a_mistake_is_one_sentence(
    argv: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert words in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "words"),
    [("train --epocs 3", "--epochs"), ("train --epochs many", "many"), ("trian", "train"), ("data", "fetch")],
)
def test_a_wrong_flag_is_explained(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv.split())
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    """Of each in turn, in one process that has torch already, with sr2 imported anew."""
    code = """
import sys
import torch
for module in ("tyro", "rich", "sklearn", "safetensors"):
    for name in [n for n in sys.modules if n.split(".")[0] in ("sr2", module)]:
        del sys.modules[name]
    sys.modules[module] = None
    from sr2.cli import main
    print(module, main(), flush=True)
    del sys.modules[module]
"""
    command = [sys.executable, "-c", code, "train", "--epochs", "1", "--model", "mlp"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["tyro", "2", "rich", "2", "sklearn", "2", "safetensors", "2"], done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 4
    assert all(line.startswith("error: ") and "sr2[experiments]" in line for line in said)
    assert not list(tmp_path.rglob("config.json"))  # before anything started


def test_an_interrupt_while_it_is_still_importing_is_one_sentence(tmp_path: Path) -> None:
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "tyro":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from sr2.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code, "train"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped before anything began\n")


TRAP = """
from pathlib import Path
Path("was-imported").touch()
from torch import nn
def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_what_reads_runs_imports_no_code_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trap_of_cli", raising=False)
    Path("trap_of_cli.py").write_text(TRAP)
    assert main(["train", "--model", "trap_of_cli:net", "--epochs", "1", "--batch", "400"]) == 0
    mark, (folder,) = Path("was-imported"), Path("runs").iterdir()
    config = (folder / "config.json").read_text()
    without_sums(folder)
    for setting in ("model", "data", "optimizer", "regularizer"):
        mark.unlink(missing_ok=True)
        monkeypatch.delitem(sys.modules, "trap_of_cli", raising=False)
        named = {**json.loads(config), "model": "mlp", setting: "trap_of_cli:net"}
        del named["sha256"]
        (folder / "config.json").write_text(json.dumps(named))
        assert main(["report", "runs"]) == 0
        assert main(["paper", "list"]) == 0
        assert main(["paper", "report"]) == 0
        capsys.readouterr()
        assert main(["prune", "runs"]) == 2
        error = capsys.readouterr().err
        if setting in ("model", "data"):
            assert f"{folder}/config.json names the code trap_of_cli:net: if you know it, add --trust" in error
        else:
            assert "was trained with another mlp" in error  # which it has got to
        assert not mark.exists(), setting
    (folder / "config.json").write_text(config)
    assert main(["prune", "runs", "--trust"]) == 0
    assert mark.exists()


def test_a_damaged_run_is_named_and_the_others_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in ("0", "1"):
        assert main(["train", "--model", "mlp", "--epochs", "1", "--batch", "400", "--seed", seed]) == 0
    first, second = sorted(Path("runs").iterdir())
    (first / "metrics.jsonl").write_text("{")
    capsys.readouterr()
    for command in ("report runs", "prune runs", "paper list"):
        assert main(command.split()) == 0
        said = capsys.readouterr()
        assert said.err.startswith(f"skipped: {first}/metrics.jsonl is damaged ")
        assert said.err.count("\n") == 1
    assert "1 × 1" in Path("runs/report/tables.md").read_text()
    (second / "result.json").write_text("[]")
    assert main(["report", "runs"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {first}/metrics.jsonl is damaged ")


def test_data_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "fashion_mnist" in capsys.readouterr().out
    assert main(["data", "check", "digits"]) == 0
    assert "1437 + 360 images, good" in capsys.readouterr().out


def test_paper_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "list"]) == 0
    assert "45 cells, 0 run, 45 missing" in capsys.readouterr().out
    Path("empty").mkdir()
    assert main(["paper", "report", "--runs", "empty"]) == 0
    assert "empty has no run in it, so every cell is missing" in capsys.readouterr().err
    assert "(default: 41.0)" in helps(capsys, "paper", "run", "cifar10-resnet34-sr2-l1-1e-4")
    # the recipe of the cell, on what is here
    flags = ["--data", "digits", "--model", "mlp", "--epochs", "1", "--batch", "400"]
    assert main(["paper", "run", "cifar10-resnet34-sr2-l1-1e-4", *flags]) == 0
    config = next(tmp_path.rglob("config.json")).read_text()
    assert '"sigma": 41.0' in config
    assert '"penalize": "weights"' in config


def test_a_recipes_lambda_is_not_that_of_a_regularizer_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--regularizer", "elastic_net", "--reg", "lam1=1e-4", "lam2=1e-3", "--data", "digits", "--model", "mlp"]
    flags += ["--epochs", "1", "--batch", "400"]
    assert main(["paper", "run", "cifar10-resnet34-sr2-l1-1e-4", *flags]) == 0
    assert main(["paper", "run", "cifar10-resnet34-sr2-l1-1e-4", *flags, "--lam", "0.001"]) == 0
    assert "is finished already" in capsys.readouterr().out  # it is the same run
    assert main(["paper", "run", "cifar10-resnet34-sr2-l1-1e-4", *flags, "--lam", "0.1"]) == 2
    assert "elastic_net has no lam: leave out --lam" in capsys.readouterr().err


def test_report_and_paper_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--model", "mlp", "--epochs", "1", "--batch", "400"]) == 0
    assert main(["report", "runs"]) == 0
    assert "the report is runs/report/index.html" in capsys.readouterr().out
    Path("a-file").write_text("")
    assert main(["report", "runs", "--out", "a-file"]) == 2
    assert capsys.readouterr().err == "error: a-file cannot be written: Not a directory\n"
    assert main(["paper", "report"]) == 0
    assert "the report is runs/paper/index.html" in capsys.readouterr().out
