"""Which parameter gets which regularizer, the words of wrong arguments, and the optimizers' repr."""

import re

import pytest
import torch
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, ProxGEN, ProxSGD, param_groups
from tests.optimizers import OPTIMIZERS, named
from tests.tools import algorithm_1

every = pytest.mark.parametrize("case", OPTIMIZERS, ids=named)


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.conv = nn.Conv2d(2, 3, 3)
        self.batch_norm = nn.BatchNorm2d(3)
        self.layer_norm = nn.LayerNorm((2, 4))  # weights of two dimensions
        self.group_norm = nn.GroupNorm(1, 3)
        self.embedding = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)  # bias_k has three dimensions
        self.prelu = nn.PReLU()
        self.lstm = nn.LSTM(4, 3)
        self.tied = nn.Linear(4, 5, bias=False)
        self.tied.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(()))


WEIGHTS = {
    "linear.weight",
    "conv.weight",
    "embedding.weight",
    "attention.in_proj_weight",
    "attention.out_proj.weight",
    "lstm.weight_ih_l0",
    "lstm.weight_hh_l0",
}


@every
def test_penalize_weights(case):
    model = Everything()
    optimizer = case.make(model, L1(0.1))
    penalized, free = optimizer.param_groups
    assert set(penalized["param_names"]) == WEIGHTS
    assert penalized["regularizer"] == L1(0.1)
    assert free["regularizer"] is None
    everything = {name for name, _ in model.named_parameters()}
    assert set(free["param_names"]) == everything - WEIGHTS
    assert {"layer_norm.weight", "attention.bias_k", "prelu.weight", "scale"} <= set(free["param_names"])


@every
def test_penalize_all(case):
    model = Everything()
    optimizer = case.make(model, L1(0.1), penalize="all")
    (group,) = optimizer.param_groups
    assert group["param_names"] == [name for name, _ in model.named_parameters()]
    assert group["regularizer"] == L1(0.1)


def test_an_iterable_is_penalized_as_it_is():
    model = nn.Linear(3, 2)
    for params in (model.parameters(), list(model.named_parameters())):
        (group,) = SR2(params, L1(0.1), sigma=1.0).param_groups
        assert len(group["params"]) == 2
        assert group["regularizer"] == L1(0.1)


def test_a_group_names_its_own_regularizer_or_none():
    model = nn.Linear(3, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "regularizer": None}]
    optimizer = SR2(groups, L0(0.1), sigma=1.0)
    assert [g["regularizer"] for g in optimizer.param_groups] == [L0(0.1), None]


# ---- param_groups


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def test_the_first_match_wins():
    rules = [("*.bias", None), ("4.*", L0(0.1)), (re.compile(r"^[24]\."), L1(0.2)), ("*", L1(0.3))]
    groups = param_groups(network(), rules)
    named = {n: g["regularizer"] for g in groups for n, _ in g["params"]}
    assert named == {
        "0.weight": L1(0.3),
        "0.bias": None,
        "2.weight": L1(0.2),
        "2.bias": None,
        "4.weight": L0(0.1),
        "4.bias": None,
    }


def test_rules_reach_the_optimizer():
    model = network()
    optimizer = SR2(
        param_groups(model, [("*.bias", None), ("0.weight", L1(0.1)), ("*", L0Ball(k=3))]), sigma=1.0, reach=None
    )
    assert [g["regularizer"] for g in optimizer.param_groups] == [None, L1(0.1), L0Ball(k=3)]
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 6


def test_a_rule_whose_parameters_are_all_claimed_is_no_group():
    groups = param_groups(network(), [("*", L1(0.1)), ("*.bias", None)])
    assert len(groups) == 1


def test_tied_weights_are_in_one_group():
    model = Everything()
    groups = param_groups(model, [("*.bias*", None), ("*", L1(0.1))])
    ids = [id(p) for g in groups for _, p in g["params"]]
    assert len(ids) == len(set(ids)) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("rules", "error", "words"),
    [
        ([("layer1.*", None), ("*", None)], ValueError, r"'layer1.\*' matches no parameter.*0.weight, 0.bias"),
        ([(re.compile("head"), None), ("*", None)], ValueError, "'head' matches no parameter"),
        ([("*.weight", L1(0.1))], ValueError, r"no rule claims 0.bias, 2.bias, 4.bias.*\('\*', None\)"),
        ([], ValueError, "no rule claims"),
        ([("*", "l1")], TypeError, "must be a Regularizer"),
        ([("*", L1)], TypeError, "must be a Regularizer"),
        ({"0.*": L1(0.1), "*": None}, TypeError, r"one is '0\.\*': give a list of pairs"),
        ([("0.*", L1(0.1), 3)], TypeError, "a rule is a pair"),
    ],
)
def test_wrong_rules(rules, error, words):
    with pytest.raises(error, match=words):
        param_groups(network(), rules)


def test_long_lists_of_names_are_cut():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
    with pytest.raises(ValueError, match=r"and 14 more"):
        param_groups(model, [("nothing", None)])


# ---- wrong arguments

WRONG = [wrong for case in OPTIMIZERS for wrong in case.wrong]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.words[:40])
def test_wrong_arguments(wrong):
    with pytest.raises(wrong.error, match=wrong.words) as raised:
        wrong.call()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_gamma2_none_means_gamma1():
    rule = SR2(network(), sigma=1.0, gamma1=7.0).rule
    assert (rule.gamma1, rule.gamma2) == (7.0, 7.0)


# ---- repr


def test_repr():
    model = network()
    assert repr(SR2(model, L1(1e-4), sigma=2.0, momentum=0.9, metric="adam")).splitlines()[1:] == [
        "  group 0: 3 tensors, 112 parameters, L1(lam=0.0001)",
        "  group 1: 3 tensors, 18 parameters, no regularizer",
        ")",
    ]
    first = repr(algorithm_1(model, L1(1e-4), sigma=2.0, momentum=0.9, metric="adam")).splitlines()[0]
    assert first.startswith(
        "SR2(sigma=2, sigma_min=1e-06, rule=Ratio(eta1=0.00075, eta2=0.99, gamma1=5.56, gamma2=5.56, gamma3='auto')"
    )
    assert "direction=Average(momentum=0.9), metric=Adam(beta=0.999, eps=1e-08)" in first
    assert repr(SR2(model)).splitlines()[0] == (
        "SR2(sigma=auto, sigma_min=1e-06, rule=Tolerant(rise=3.0, eta2=0.9, gamma1=1.5, gamma3=0.98, usual='auto', "
        "longest='auto'), "
        "direction=Average(momentum=0.9), metric=Adam(beta=0.999, eps=1e-08), averaging=Polynomial(k=8.0)"
    )
    assert repr(ProxGEN(model, L0(1e-3), lr=0.1, weight_decay=0.5)).startswith(
        "ProxGEN(lr=0.1, momentum=0, weight_decay=0.5\n  group 0: 3 tensors, 112 parameters, L0(lam=0.001)\n"
    )
    assert repr(ProxSGD(model, L1(1e-3), rho=None, metric=None)).startswith(
        "ProxSGD(lr=0.06, lr_decay=0.5, rho=None, metric=None\n"
    )


def test_repr_follows_sigma():
    model = network()
    optimizer = SR2(model, sigma=1e-3)
    optimizer.step(lambda: model(torch.ones(1, 4)).square().sum())
    assert f"sigma={optimizer.sigma:g}" in repr(optimizer)
    assert optimizer.sigma != 1e-3


@pytest.mark.parametrize("kind", [SR2, ProxSGD])
def test_an_empty_first_group_under_capturable(kind):
    x = nn.Parameter(torch.ones(3))
    optimizer = kind([{"params": []}, {"params": [x]}], capturable=True)
    optimizer.step(lambda: x.square().sum())
    assert float(x.detach().sum()) < 3
