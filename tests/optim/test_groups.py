"""Which parameter gets which regularizer, the words of wrong arguments, and the optimizers' repr."""

import re

import pytest
import torch
from torch import nn

from sr2 import L0, L1, MCP, SR2, L0Ball, Nuclear, ProxGEN, ProxSGD, Rank, param_groups


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


@pytest.mark.parametrize("kind", [SR2, ProxGEN, ProxSGD])
def test_penalize_weights(kind):
    model = Everything()
    optimizer = kind(model, L1(0.1), **({"sigma": 1.0} if kind is SR2 else {}))
    penalized, free = optimizer.param_groups
    assert set(penalized["param_names"]) == WEIGHTS
    assert penalized["regularizer"] == L1(0.1)
    assert free["regularizer"] is None
    everything = {name for name, _ in model.named_parameters()}
    assert set(free["param_names"]) == everything - WEIGHTS
    assert {"layer_norm.weight", "attention.bias_k", "prelu.weight", "scale"} <= set(free["param_names"])


@pytest.mark.parametrize("kind", [SR2, ProxGEN, ProxSGD])
def test_penalize_all(kind):
    model = Everything()
    optimizer = kind(model, L1(0.1), penalize="all", **({"sigma": 1.0} if kind is SR2 else {}))
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
    optimizer = SR2(param_groups(model, [("*.bias", None), ("0.weight", L1(0.1)), ("*", L0Ball(k=3))]), sigma=1.0)
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

S = {"sigma": 1.0}
WRONG = [
    (SR2, (L1,), S, TypeError, r"regularizer must be a Regularizer such as L1\(1e-4\)"),
    (SR2, ("l1",), S, TypeError, "'l1'"),
    (SR2, (1e-3,), S, TypeError, "0.001"),
    (SR2, (), {"sigma": 0.0}, ValueError, "SR2: sigma must be a number at least 1e-06"),
    (SR2, (), {"sigma": 1e-9}, ValueError, "sigma"),
    (SR2, (), {"sigma": float("nan")}, ValueError, "sigma"),
    (SR2, (), {"sigma": float("inf")}, ValueError, "finite"),
    (SR2, (), {"sigma": 1.0, "sigma_min": 2.0}, ValueError, "SR2: sigma must be a number at least 2"),
    (SR2, (), {"sigma": 1.0, "sigma_min": 0.0}, ValueError, "sigma_min must be a number above 0"),
    (SR2, (), {"sigma": 1.0, "eta1": 0.0}, ValueError, "0 < eta1 <= eta2 < 1, and got eta1=0.0"),
    (SR2, (), {"sigma": 1.0, "eta1": 0.5, "eta2": 0.4}, ValueError, "eta1=0.5, eta2=0.4"),
    (SR2, (), {"sigma": 1.0, "eta2": 1.0}, ValueError, "eta2=1.0"),
    (SR2, (), {"sigma": 1.0, "eta1": float("nan")}, ValueError, "eta1=nan"),
    (SR2, (), {"sigma": 1.0, "gamma1": 1.0}, ValueError, "gamma1=1.0"),
    (SR2, (), {"sigma": 1.0, "gamma1": 5.56, "gamma2": 2.95}, ValueError, "gamma2=2.95: leave gamma2=None"),
    (SR2, (), {"sigma": 1.0, "gamma2": float("inf")}, ValueError, "gamma2=inf"),
    (SR2, (), {"sigma": 1.0, "gamma3": 0.0}, ValueError, "gamma3=0.0"),
    (SR2, (), {"sigma": 1.0, "gamma3": 1.1}, ValueError, "gamma3=1.1"),
    (SR2, (), {"sigma": 1.0, "momentum": 1.0}, ValueError, "SR2: momentum must be a number at least 0 and below 1"),
    (SR2, (), {"sigma": 1.0, "momentum": -0.1}, ValueError, "momentum"),
    (SR2, (), {"sigma": 1.0, "metric": "adma"}, ValueError, "did you mean 'adam'"),
    (SR2, (), {"sigma": 1.0, "metric": 3}, ValueError, "one of adam, adagrad, rmsprop, andrei"),
    (SR2, (), {"sigma": 1.0, "penalize": "biases"}, ValueError, "'weights' or 'all', and is 'biases'"),
    (SR2, (Rank(2),), {"sigma": 1.0, "metric": "adam"}, ValueError, r"Rank\(.*one step per tensor.*metric=None"),
    (SR2, (Nuclear(0.1),), {"sigma": 1.0, "metric": "andrei"}, ValueError, "Andrei"),
    (ProxGEN, (L1,), {}, TypeError, "Regularizer"),
    (ProxGEN, (), {"lr": 0.0}, ValueError, "ProxGEN: lr must be a number above 0"),
    (ProxGEN, (), {"lr": -1.0}, ValueError, "lr"),
    (ProxGEN, (), {"momentum": 1.0}, ValueError, "ProxGEN: momentum"),
    (ProxGEN, (), {"weight_decay": -1.0}, ValueError, "weight_decay"),
    (ProxGEN, (Nuclear(0.1),), {"metric": "adam"}, ValueError, "gives one per entry"),
    (ProxSGD, (), {"lr": 0.0}, ValueError, "ProxSGD: lr"),
    (ProxSGD, (), {"lr_decay": -0.5}, ValueError, "lr_decay"),
    (ProxSGD, (), {"rho": 0.0}, ValueError, "rho"),
    (ProxSGD, (), {"rho_decay": -0.5}, ValueError, "rho_decay"),
    (ProxSGD, (MCP(0.1, 2.0),), {}, ValueError, "use SR2 or ProxGEN"),
]


@pytest.mark.parametrize(("kind", "args", "options", "error", "words"), WRONG)
def test_wrong_arguments(kind, args, options, error, words):
    with pytest.raises(error, match=words) as raised:
        kind(network(), *args, **options)
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
    first = repr(SR2(model, L1(1e-4), sigma=2.0, momentum=0.9, metric="adam")).splitlines()[0]
    assert first.startswith(
        "SR2(sigma=2, sigma_min=1e-06, rule=Ratio(eta1=0.00075, eta2=0.99, gamma1=5.56, gamma2=5.56, gamma3='auto')"
    )
    assert "direction=Average(momentum=0.9), metric=Adam(beta=0.999, eps=1e-08)" in first
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
