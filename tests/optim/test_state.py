"""State: a run that is interrupted and restored goes on to the same bits, wherever it was kept meanwhile."""

import copy
import functools
import json
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, param_groups
from sr2.optim.state import SearchState
from tests.optimizers import OPTIMIZERS, SETS, named
from tests.tools import remembered, same_bits

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(64) % 3
JUDGES = [case for case in OPTIMIZERS if case.judges]


def of(case, options):
    R = L0(1e-3) if case.takes(L0(1e-3)) else L1(1e-3)
    return lambda p: case.make(p, R, options, **case.lively)


CASES = {
    **{f"{case.name} {options}": of(case, options) for case, options in SETS},
    "SR2 per group": lambda p: SR2(param_groups(p, [("0.*", L1(1e-3)), ("*", None)]), sigma=0.3, momentum=0.9),
    "SR2 L0Ball": lambda p: SR2(p, L0Ball(density=0.5), sigma=0.3, reach=None),
}
QUIET = pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Dropout(0.2), nn.ReLU(), nn.Linear(10, 3))


def train(model, optimizer, steps):
    for t in steps:
        torch.manual_seed(t)
        batch = torch.randint(0, 64, (16,))
        optimizer.step(lambda batch=batch: F.cross_entropy(model(X[batch]), Y[batch]))
    return [t.detach().clone() for t in model.state_dict().values()]


@functools.cache
def uninterrupted(name):
    model = network()
    optimizer = CASES[name](model)
    return train(model, optimizer, range(30)), optimizer


@QUIET
@pytest.mark.parametrize("name", CASES)
def test_interrupted_and_resumed(name, tmp_path):
    expected, other = uninterrupted(name)
    model = network()
    optimizer = CASES[name](model)
    train(model, optimizer, range(13))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint")
    del model, optimizer

    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.123)
    optimizer = CASES[name](model)
    saved = torch.load(tmp_path / "checkpoint", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert same_bits(train(model, optimizer, range(13, 30)), expected)
    if isinstance(optimizer, SR2):
        assert (optimizer.sigma, optimizer.counts, optimizer.last_step) == (other.sigma, other.counts, other.last_step)


@QUIET
@pytest.mark.parametrize("name", [f"{case.name} {options}" for case in JUDGES for options in case.options])
def test_the_runs_above_have_something_to_forget(name):
    """A state that is lost must show: sigma moved away from sigma_0, and steps of both fates happened."""
    _, optimizer = uninterrupted(name)
    assert optimizer.counts["accepted"] > 5
    assert optimizer.sigma != 0.3


@QUIET
@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("name", CASES)
def test_a_copy_goes_on_to_the_same_bits(name, copier):
    expected, _ = uninterrupted(name)
    model = network()
    optimizer = CASES[name](model)
    train(model, optimizer, range(13))
    other_model, other = copier((model, optimizer))
    train(model, optimizer, range(5))  # the original goes elsewhere meanwhile
    assert other.param_groups[0]["params"][0] is next(other_model.parameters())
    assert same_bits(train(other_model, other, range(13, 30)), expected)
    assert repr(other).splitlines()[1:] == repr(optimizer).splitlines()[1:]


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("case", OPTIMIZERS, ids=named)
def test_a_copy_takes_a_new_group(case, copier):
    model = network()
    pair = (model, case.make(model, L1(1e-3)))
    ends = []
    for a_model, optimizer in (pair, copier(pair)):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2))], "regularizer": None})
        options = {key: value for key, value in optimizer.param_groups[-1].items() if key != "params"}
        ends.append((options, train(a_model, optimizer, range(3))))
    assert ends[0][0] == ends[1][0]
    assert same_bits(ends[0][1], ends[1][1])


@QUIET
def test_the_files_read_with_torch_alone(tmp_path):
    expected = {}
    for name, make in CASES.items():
        model = network()
        optimizer = make(model)
        train(model, optimizer, range(2))
        torch.save(optimizer.state_dict(), tmp_path / name)
        expected[name] = [
            list(map(str, range(6))),
            list(optimizer._remembered()),
            repr(optimizer.param_groups[0]["regularizer"]),
        ]
    code = (
        "import json, pathlib, sys, torch\n"
        "states = {p.name: torch.load(p, weights_only=True) for p in pathlib.Path(sys.argv[1]).iterdir()}\n"
        "assert 'sr2' not in sys.modules\n"
        "lines = lambda g: [name for name in ('search', 'schedule') if name in g and json.loads(g[name])]\n"
        "told = lambda s: [sorted(map(str, s['state'])), lines(s['param_groups'][0]), "
        "s['param_groups'][0]['regularizer']]\n"
        "print(json.dumps({name: told(state) for name, state in states.items()}))\n"
    )
    out = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == expected


def test_two_optimizers_from_one_state_do_not_share_it():
    model = network()
    optimizer = SR2(model, L1(1e-3), sigma=0.3)
    train(model, optimizer, range(3))
    saved = optimizer.state_dict()
    counts, sigma = optimizer.counts, optimizer.sigma
    others = []
    for _ in range(2):
        model = network()
        others.append((model, SR2(model, L1(1e-3), sigma=7.0)))
        others[-1][1].load_state_dict(saved)
    train(*others[0], range(5))
    assert others[0][1].counts != counts
    assert (others[1][1].counts, others[1][1].sigma) == (counts, sigma)
    assert (optimizer.counts, optimizer.sigma) == (counts, sigma)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"capturable": True}], ids=str)
def test_loading_leaves_the_given_state_as_it_was(options):
    model = network()
    optimizer = SR2(model, L1(1e-3), sigma=0.3, **options)
    train(model, optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    words = str(saved)
    other_model = network()
    other = SR2(other_model, L1(1e-3), sigma=0.3, **options)
    other.load_state_dict(saved)
    train(other_model, other, range(3))
    assert str(saved) == words


@pytest.mark.parametrize("case", OPTIMIZERS, ids=named)
def test_another_regularizer_is_warned_about(case):
    state = case.make(network(), L1(1e-3)).state_dict()
    other = case.make(network(), L1(2e-3))
    with pytest.warns(
        UserWarning, match=r"group 0 was saved under L1\(lam=0.001\) and goes on under L1\(lam=0.002\)"
    ) as record:
        other.load_state_dict(state)
    assert record[0].filename == __file__
    assert other.param_groups[0]["regularizer"] == L1(2e-3)
    assert other.param_groups[1]["regularizer"] is None


@pytest.mark.parametrize("missing", ["accepted", "rejected", "null", "entered"])
def test_a_state_of_before_an_entry_was_there_still_loads(missing):
    model = network()
    optimizer = SR2(model, L1(1e-3), sigma=0.3)
    train(model, optimizer, range(3))
    state = copy.deepcopy(optimizer.state_dict())
    del remembered(state)[missing]
    other_model = network()
    other = SR2(other_model, L1(1e-3), sigma=1.0)
    other.load_state_dict(state)
    assert other.sigma == optimizer.sigma
    train(other_model, other, range(3))
    assert other.counts.keys() == optimizer.counts.keys()
    assert sum(other.counts.values()) >= 3


def test_a_cooldown_goes_on_from_its_own_first_sigma_alone():
    saved = {**SR2(network(), cooldown=(4, 9))._search.state_dict(), "memory": {"sigma_first": 7.0}}
    for cooldown, first in (((4, 9), 7.0), ((4, 10), 0.0)):  # of another cooldown nothing is kept
        search = SR2(network(), cooldown=cooldown)._search
        search.load_state_dict(saved)
        assert float(search.memory["sigma_first"]) == first


@pytest.mark.parametrize("case", OPTIMIZERS, ids=named)
def test_a_post_hook_sees_the_state_as_it_will_be(case):
    """torch hands it the optimizer after a load, to read or to change."""
    model, other_model = network(), network()
    optimizer = case.make(model, L1(1e-3))
    train(model, optimizer, range(2))
    other, seen = case.make(other_model, L1(1e-3)), []
    other.register_load_state_dict_post_hook(lambda loaded: seen.append(copy.deepcopy(loaded.state_dict())))
    other.register_load_state_dict_post_hook(lambda loaded: loaded.param_groups[0].update(regularizer=None))
    other.load_state_dict(optimizer.state_dict())
    assert str(seen) == str([optimizer.state_dict()])
    assert other.param_groups[0]["regularizer"] is None  # what it has changed stays


@pytest.mark.parametrize("metric", ["adam", "adagrad", "rmsprop", "andrei"])
def test_slow_means_of_a_bfloat16_parameter_stay_in_float32(metric):
    def made():
        x = nn.Parameter(torch.linspace(0.1, 1.0, 7).bfloat16())
        return x, SR2([x], sigma=30.0, metric=metric)

    (x, optimizer), (y, resumed) = made(), made()
    for _ in range(3):
        optimizer.step(lambda: x.float().pow(4).sum())
    resumed.load_state_dict(optimizer.state_dict())
    for name, value in optimizer.state[x].items():
        if isinstance(value, torch.Tensor):
            assert resumed.state[y][name].dtype == value.dtype, name
            assert torch.equal(resumed.state[y][name], value), name


def test_groups_that_do_not_match_are_torchs_own_error():
    state = SR2(network(), L1(1e-3), sigma=1.0).state_dict()
    other = SR2([nn.Parameter(torch.ones(2))], L1(1e-3), sigma=1.0)
    with pytest.raises(ValueError, match="parameter group"):
        other.load_state_dict(state)
    assert other.param_groups[0]["regularizer"] == L1(1e-3)


def test_named_parameters_are_kept_in_the_state():
    model = network()
    state = SR2(model, L1(1e-3), sigma=1.0).state_dict()
    assert [n for g in state["param_groups"] for n in g["param_names"]] == [
        "0.weight",
        "4.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "4.bias",
    ]


def in_its_order(optimizer, saved):
    """As torch describes a hook for parameters that are in another order than those that were saved."""
    made = copy.deepcopy(optimizer.state_dict())
    for mine, group in zip(made["param_groups"], saved["param_groups"], strict=True):
        numbers = dict(zip(group["param_names"], group["params"], strict=True))
        mine |= {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for number, name in zip(mine["params"], mine["param_names"], strict=True):
            made["state"][number] = copy.deepcopy(saved["state"][numbers[name]])
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_hook_may_give_another_state_to_load(dtype):
    """Of a bfloat16 parameter torch rounds the slow means, and they are taken again: from what the hook has given."""
    torch.manual_seed(0)
    a, b = (nn.Parameter(torch.randn(4, 4).to(dtype)) for _ in range(2))
    first = SR2([("a", a), ("b", b)], L1(1e-3))
    for _ in range(3):
        first.step(lambda: (a.float() @ b.float() - 1).square().mean())
    other = SR2([("b", b), ("a", a)], L1(1e-3))
    other.register_load_state_dict_pre_hook(lambda optimizer, given: in_its_order(optimizer, given["saved"]))
    other.load_state_dict({"saved": first.state_dict()})
    assert other.sigma == first.sigma
    for p in (a, b):
        assert other.state[p].keys() == first.state[p].keys()
        for name, value in first.state[p].items():
            assert torch.equal(torch.as_tensor(other.state[p][name]), torch.as_tensor(value)), name


def test_the_figures_of_a_copy_are_its_own():
    """They are views of one vector, by name."""
    state = SearchState.start(1.0, {}, None)
    before = state.figures
    other = copy.deepcopy(state)
    other.seen.fill_(2.0)
    assert [float(n) for n in other.figures] == [2.0] * 9
    assert all(bool(n.isnan()) for n in (*before, *state.figures))
    state.seen.fill_(3.0)
    assert [float(n) for n in before] == [3.0] * 9
    state.to("meta")
    assert {n.device.type for n in state.figures} == {"meta"}
