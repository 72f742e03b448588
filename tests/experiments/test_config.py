"""RunConfig: keys that last, names with the closest, mistakes that are named before anything starts."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import sr2
from sr2.directions import Average
from sr2.experiments.baselines import GMP, SGD, AdamW
from sr2.experiments.errors import UserError
from sr2.experiments.names import Precision
from sr2.experiments.run.build import checked, make_optimizer, make_regularizer
from sr2.experiments.run.config import FIRST_OPTIONS, RunConfig
from sr2.experiments.run.options import Value
from sr2.experiments.run.registry import GIVEN, OPTIMIZERS, REGULARIZERS, option_names
from sr2.rules import Tolerant
from sr2.schedules import Cooldown


def test_every_exported_regularizer_and_optimizer_has_a_name() -> None:
    exported = [c for n in sr2.__all__ if isinstance(c := getattr(sr2, n), type)]
    assert set(REGULARIZERS.values()) == {c for c in exported if issubclass(c, sr2.Regularizer)} - {sr2.Regularizer}
    assert set(OPTIMIZERS.values()) == {c for c in exported if issubclass(c, torch.optim.Optimizer)} | {AdamW, SGD, GMP}
    tricky = {
        "l0_ball": sr2.L0Ball,
        "group_l2": sr2.GroupL2,
        "elastic_net": sr2.ElasticNet,
        "nm": sr2.NM,
        "mcp": sr2.MCP,
    }
    assert {name: REGULARIZERS[name] for name in tricky} == tricky


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_argument_of_an_optimizer_is_an_option_or_follows_from_the_run(name: str) -> None:
    assert set(inspect.signature(OPTIMIZERS[name]).parameters) <= {*option_names(name), *GIVEN}
    assert not GIVEN & set(option_names(name))


def test_the_key_is_readable_and_lasts() -> None:
    assert RunConfig().key == "digits-cnn-sr2-l1-0.001-s0-a5b134183c"
    assert RunConfig.of(regularizer="nm").key.startswith("digits-cnn-sr2-nm-s0-")
    assert "/" not in RunConfig.of(data="my.mod:fn", model="x:y").key
    assert ":" not in RunConfig.of(data="my.mod:fn", model="x:y").key


def test_equal_configs_have_one_key() -> None:
    assert RunConfig.of(lam=1).key == RunConfig.of(lam=1.0).key
    assert RunConfig.of(sigma=2, momentum=0).key == RunConfig.of(sigma=2.0, momentum=0.0).key
    assert RunConfig.from_dict({"lam": 1}).key == RunConfig.of(lam=1.0).key
    assert type(RunConfig.of(epochs=2).epochs) is int


RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*/config.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_every_folder_of_the_results_keeps_its_key(path: Path) -> None:
    saved = json.loads(path.read_text())
    saved.pop("sha256", None)  # of the file itself
    read = RunConfig.from_dict(saved)
    assert read.key == path.parent.name
    again = RunConfig.from_dict(json.loads(json.dumps(read.to_dict())))  # as it would be written today
    assert (again, again.key) == (read, path.parent.name)


def test_there_are_results() -> None:
    assert len(RESULTS) >= 20


@dataclasses.dataclass(frozen=True)
class Tomorrow(RunConfig):
    """A configuration with a setting that there is not yet."""

    shiny: bool = False


def test_a_new_setting_or_option_orphans_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sr2.experiments.run.config.RunConfig", Tomorrow)
    assert Tomorrow(epochs=3).key == RunConfig(epochs=3).key
    assert Tomorrow(epochs=3, shiny=True).key != RunConfig(epochs=3).key
    assert Tomorrow.of(polish=0.5).key != RunConfig().key
    assert Tomorrow.of(compile=True).key != Tomorrow(options={"compile": True}).key  # the network's, the optimizer's


def test_what_was_so_before_it_could_be_said_is_in_no_key() -> None:
    assert RunConfig.of(average=False, rule="none").key == RunConfig().key
    assert RunConfig.of(average=True).key != RunConfig().key
    assert RunConfig.of(momentum=0.0).key != RunConfig().key  # as the first version hashed it
    own = {"optimizer": "mine:make"}
    assert RunConfig.of(**own, average=False).key != RunConfig.of(**own).key  # who knows what it does by itself


def with_defaults(**defaults: object) -> type[sr2.SR2]:
    """An SR2 of another day."""

    class Another(sr2.SR2):
        def __init__(self, params: object, regularizer: object = None, **options: object) -> None:
            algorithm_1 = {"momentum": 0.0, "metric": None, "average": False, "eta1": 7.5e-4}
            named = {"eta1", "eta2", "gamma1", "gamma3"} & set(options)
            chosen = (
                algorithm_1 if named else {n: v for n, v in defaults.items() if n != "eta1" or "rule" not in options}
            )
            super().__init__(params, regularizer, **(chosen | options))  # type: ignore[arg-type]

    Another.__signature__ = inspect.signature(sr2.SR2)  # type: ignore[attr-defined]
    return Another


def half() -> Average:
    return Average(0.5)


FIRST = with_defaults(momentum=0.0, metric=None, average=False, eta1=7.5e-4)
TOMORROW = with_defaults(momentum=0.9, metric="adam", average=True, rule=Tolerant(), test_every=4)


@pytest.mark.parametrize("day", [FIRST, TOMORROW], ids=["first", "tomorrow"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"average": False},
        {"momentum": 0.5, "metric": "none"},
        {"rule": "sr2.rules:Follow"},
        {"rule": "sr2.rules:Ratio"},
        {"eta2": 0.9},
        {"eta1": 7.5e-4, "average": True},
        {"direction": f"{__name__}:half", "momentum": 0.0},
        {"sigma_min": 0.1, "cooldown": 0.2},
        {"test_every": 1.0},
        {"test_every": "auto"},
    ],
    ids=str,
)
def test_a_config_says_what_it_was_run_with_whatever_the_defaults_are(
    options: dict[str, Value], day: type[sr2.SR2], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = RunConfig(options=options)
    monkeypatch.setitem(OPTIMIZERS, "sr2", day)
    run, made = checked(given), make_optimizer(given, nn.Linear(2, 2))
    assert {**run.options, **given.options} == run.options  # what was said stays
    assert checked(run) == run
    monkeypatch.setitem(OPTIMIZERS, "sr2", FIRST)
    assert repr(make_optimizer(run, nn.Linear(2, 2))) == repr(made)
    assert (checked(given).key == run.key) == (repr(make_optimizer(given, nn.Linear(2, 2))) == repr(made))


def test_the_key_tells_every_setting_apart() -> None:
    other = dict.fromkeys(FIRST_OPTIONS, 0.5) | {
        "options": {"own": 1.0},
        "data": "cifar10",
        "model": "mlp",
        "optimizer": "proxgen",
        "regularizer": "l0",
        "lam": 0.5,
        "reg": ("p=1",),
        "penalize": "all",
        "epochs": 1,
        "hold_out": 100,
        "ridge": 0.5,
        "batch": 1,
        "seed": 1,
        "metric": "adam",
        "augment": False,
        "precision": "bf16",
        "compile": True,
        "largest_batch": 8192,
        "certificate": True,
        "deterministic": True,
        "device": "cuda",
    }
    assert {f.name for f in dataclasses.fields(RunConfig)} <= set(other)
    keys = {RunConfig.of(**{name: value}).key for name, value in other.items()}
    assert len(keys | {RunConfig().key}) == len(other) + 1


def test_a_config_survives_json() -> None:
    config = RunConfig.of(regularizer="l0_ball", reg=("density=0.1",), sigma=3.0, rho="none")
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert RunConfig.from_dict({}) == RunConfig()
    with pytest.raises(UserError, match="did you mean epochs"):
        RunConfig.from_dict({"epoch": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lam", "x"), ("lam", None), ("epochs", 1.5), ("seed", True), ("augment", 1), ("penalize", "biases")),
        *(("sigma", [1.0]), ("reg", "p=1"), ("reg", [1]), ("metric", {}), ("data", None), ("options", [])),
    ],
)
def test_a_field_of_another_type_is_named(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"the setting {name} cannot be"):
        RunConfig.from_dict({name: value})


def test_constants_reach_the_regularizer() -> None:
    def made(name: str, *reg: str, **settings: float) -> object:
        return make_regularizer(RunConfig.of(regularizer=name, reg=reg, **settings))

    assert made("l1", lam=0.5) == sr2.L1(0.5)
    assert made("lp", "p=0.5") == sr2.Lp(1e-3, 0.5)
    assert made("nm", "n=1", "m=2") == sr2.NM(1, 2)
    assert made("l0_ball", "density=0.1") == sr2.L0Ball(density=0.1)
    assert made("group_l2", "groups=rows") == sr2.GroupL2(1e-3, "rows")
    assert made("box", "lo=-1", "hi=inf") == sr2.Box(-1, float("inf"))
    assert made("none") is None
    assert made("sr2:L0") == sr2.L0(1e-3)


def halved(lam: float, **more: float) -> sr2.L1:
    """A regularizer of one's own that takes constants of any name."""
    return sr2.L1(lam / more["by"])


def test_constants_of_any_name_reach_ones_own() -> None:
    made = make_regularizer(RunConfig(regularizer=f"{__name__}:halved", reg=("by=4",), lam=1.0))
    assert made == sr2.L1(0.25)


def test_the_words_of_reg_name_constants() -> None:
    (field,) = (f for f in dataclasses.fields(RunConfig) if f.name == "reg")
    known = {name for R in REGULARIZERS.values() if R is not None for name in inspect.signature(R).parameters}
    named = set(re.findall(r"(\w+)=", str(field.metadata))) - {"key"}
    assert named
    assert named <= known


def test_options_reach_the_optimizer() -> None:
    made = make_optimizer(RunConfig.of(sigma=7.0, momentum=0.9, metric="adam"), nn.Linear(2, 2))
    assert isinstance(made, sr2.SR2)
    assert made.sigma == 7.0
    compiled = make_optimizer(RunConfig(options={"compile": True, "foreach": False}), nn.Linear(2, 2))
    assert (compiled.compile, compiled.foreach) == (True, False)  # type: ignore[attr-defined]
    assert made.schedule == Cooldown(1, 2)  # of a run of one step, or so
    assert make_optimizer(RunConfig.of(eta2=0.9), nn.Linear(2, 2), steps=100).schedule is None  # type: ignore[attr-defined]
    for share, first in ((0.2, 80), (1.0, 1), (1e-6, 100)):
        cooled = make_optimizer(RunConfig.of(cooldown=share), nn.Linear(2, 2), steps=100)
        assert cooled.schedule == Cooldown(first, max(first + 1, 100))  # type: ignore[attr-defined]
    off = make_optimizer(RunConfig.of(optimizer="proxsgd", rho="none", metric="none"), nn.Linear(2, 2))
    assert off.metric is None
    assert off.param_groups[0]["rho"] is None


def own_optimizer(model: nn.Module, regularizer: sr2.Regularizer, penalize: str, lr: float = 0.5) -> sr2.ProxGEN:
    return sr2.ProxGEN(model, regularizer, penalize=penalize, lr=lr)  # type: ignore[arg-type]


def no_proximal_optimizer(model: nn.Module, regularizer: sr2.Regularizer, **options: object) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters())


def own_options(model: nn.Module, regularizer: sr2.Regularizer, *, penalize: str, every: int = 2, **rest: object):  # type: ignore[no-untyped-def]
    made = sr2.ProxGEN(model, regularizer, penalize=penalize)  # type: ignore[arg-type]
    made.told = (every, rest)  # type: ignore[attr-defined]
    return made


def test_an_optimizer_of_ones_own() -> None:
    config = checked(RunConfig.of(optimizer=f"{__name__}:own_optimizer", lr=0.25))
    assert make_optimizer(config, nn.Linear(2, 2)).param_groups[0]["lr"] == 0.25
    config = checked(RunConfig.of(optimizer=f"{__name__}:own_options", every=3, colour="red", off="none"))
    every, rest = make_optimizer(config, nn.Linear(2, 2)).told  # type: ignore[attr-defined]
    assert (every, type(every), rest) == (3, int, {"colour": "red", "off": None})


MISTAKES: dict[str, tuple[dict[str, object], str]] = {
    "an unknown optimizer": ({"optimizer": "sg2"}, "did you mean sr2.*proxgen,.* proxsgd"),
    "an unknown regularizer": ({"regularizer": "elastic"}, "did you mean elastic_net.*known are .*l0_ball.*none"),
    "unknown data": ({"data": "digit"}, "did you mean digits"),
    "an unknown network": ({"model": "resnet43"}, "did you mean resnet34"),
    "an unknown metric": ({"metric": "adm"}, "did you mean 'adam'"),
    "a device that is not there": ({"device": "cuda:77"}, "no device 'cuda:77'"),
    "no device at all": ({"device": "gpu"}, "use cpu, cuda"),
    "tf32 on a CPU": ({"precision": "tf32"}, "use fp32 or bf16"),
    "an unknown precision": ({"precision": "fp8"}, "one of fp32, tf32, bf16"),
    "proxsgd with l0": ({"optimizer": "proxsgd", "regularizer": "l0"}, "not convex.*ProxSGD.*use SR2 or ProxGEN"),
    "an option of another": ({"optimizer": "proxsgd", "sigma": 1.0}, "no option sigma: its options are .*rho_decay"),
    "a cooldown of more than all": ({"cooldown": 1.5}, "a share of the run, as 0.2, 0 for none, and is 1.5"),
    "a cooldown of growing batches": (
        {"cooldown": 0.2, "batch_growth": 5.0},
        "cooldown=0.2 or batch_growth=5",
    ),
    "a cooldown of a run that may stop": (
        {"cooldown": 0.2, "epsilon": 1e-3},
        "cooldown=0.2 or epsilon=0.001",
    ),
    "an option of others": (
        {"gamma1": 2.0, "optimizer": "proxgen"},
        "its options are lr, momentum, metric, weight_decay",
    ),
    "lr for sr2": ({"lr": 0.1}, "sr2 has no option lr"),
    "an optimizer that is called otherwise": (
        {"optimizer": "torch.optim:Adam"},
        r"torch.optim:Adam is called as \(model, regularizer, penalize=…, \*\*options\).*: .*'penalize'",
    ),
    "an optimizer that is none": (
        {"optimizer": f"{__name__}:no_proximal_optimizer"},
        r"must return a sr2\.optim\.ProximalOptimizer, and returned a SGD",
    ),
    "a wrong option": ({"eta1": 2.0}, "eta1"),
    "a wrong lambda": ({"lam": -1.0}, "lam must be"),
    "lambda for one without": ({"regularizer": "nm", "lam": 0.1}, "nm has no lam"),
    "a missing constant": ({"regularizer": "lp"}, "--reg p="),
    "missing constants": ({"regularizer": "elastic_net"}, "--reg lam1=… lam2=…"),
    "an unknown constant": ({"regularizer": "lp", "reg": ("q=1",)}, "no constant 'q': its constants are p"),
    "a constant for none": ({"reg": ("p=1",)}, "it takes none"),
    "no constant": ({"reg": ("half",)}, "key=value"),
    "lambda as a constant": ({"reg": ("lam=1",)}, "use --lam"),
    "no epochs": ({"epochs": 0}, "epochs must be at least 1"),
    "a negative seed": ({"seed": -1}, "seed must be at least 0"),
    "a seed that is too large": ({"seed": 2**63}, r"seed must be below 2\^63, and is 9223372036854775808"),
    "penalize nothing": ({"penalize": "biases"}, "'weights' or 'all'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_before_anything_starts(case: str) -> None:
    settings, words = MISTAKES[case]
    with pytest.raises(UserError, match=words):
        checked(RunConfig.of(**settings))


def test_the_default_metric_serves_what_takes_one_step_per_tensor_too() -> None:
    run = checked(RunConfig(regularizer="rank", reg=("r=2",)))
    assert run.option("metric") == "adam"
    assert checked(run.having(metric="adam")) == run


def test_what_is_chosen_by_itself_is_written_out() -> None:
    assert checked(RunConfig()).options == {
        "metric": "adam",
        "average": True,
        "momentum": 0.9,
        "rule": "sr2.rules:Tolerant",
        "cooldown": 0.3,
    }
    assert checked(RunConfig.of(regularizer="none")).options["cooldown"] == 0.5
    assert checked(RunConfig.of(cooldown=0.0)).options["cooldown"] == 0.0
    assert checked(RunConfig.of(cooldown="none")).options["cooldown"] == 0.0
    uncooled = make_optimizer(RunConfig.of(cooldown=0.0), nn.Linear(2, 2), steps=100)
    assert uncooled.schedule == Cooldown(100, 101)  # type: ignore[attr-defined]
    assert checked(RunConfig.of(eta2=0.9)).options == {"eta2": 0.9}  # Algorithm 1, as in the first version
    assert checked(RunConfig.of(rule="sr2.rules:Ratio")).options == {"rule": "sr2.rules:Ratio"}


def test_auto_is_resolved_before_the_key() -> None:
    assert checked(RunConfig.of(device="auto")).device in ("cpu", "cuda")


@pytest.mark.parametrize(("precision", "expected"), [("bf16", torch.bfloat16), ("fp32", None)])
def test_sr2_is_told_how_its_loss_is_rounded(precision: Precision, expected: torch.dtype | None) -> None:
    optimizer = make_optimizer(RunConfig.of(precision=precision), nn.Linear(2, 1))
    assert isinstance(optimizer, sr2.SR2)
    assert optimizer.autocast == expected
    make_optimizer(RunConfig.of(optimizer="proxgen", precision=precision), nn.Linear(2, 1))  # which need not know


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (RunConfig(regularizer="none"), True),
        (RunConfig(regularizer="none").having(weight_decay=0.1), False),
        (RunConfig(regularizer="l0_ball", reg=("density=0.1",)), False),  # a budget has its own
        (RunConfig(regularizer="l1"), False),  # which has no decay
    ],
    ids=lambda given: getattr(given, "label", given),
)
def test_a_run_tells_how_many_steps_an_epoch_has(given: RunConfig, told: bool) -> None:
    run = checked(given.having(epochs=4))
    assert (run.options.get("steps_per_epoch") == "auto") == told
    optimizer = make_optimizer(run, nn.Linear(2, 2), steps=4 * 391)
    assert optimizer._decay.steps_per_epoch == (391 if told else None)  # type: ignore[union-attr]
    before = make_optimizer(given, nn.Linear(2, 2), steps=4 * 391)  # a config.json of before says nothing of it
    assert before._decay.steps_per_epoch is None  # type: ignore[union-attr]
