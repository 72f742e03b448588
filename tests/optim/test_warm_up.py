"""`Tolerant.usual`: above it sigma falls at every accepted step, until a step is a tenth of the weights."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sr2 import L0, L1, NM, SR2, KeepZeros, L0Ball, param_groups
from sr2.metrics import Adam
from sr2.rules import Ratio, Tolerant

torch.manual_seed(0)
X, Y = torch.randn(60, 32, 10), torch.randint(3, (60, 32))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 3))


def train(model, optimizer, steps=60):
    for x, y in zip(X[:steps], Y[:steps], strict=True):
        optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
    return optimizer


def size(model):
    """By numpy's own sums."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1]).double().numpy()
    return math.sqrt(math.pi / 2) * abs(weights[weights != 0]).mean()


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("test_every", [1, 4])
def test_sigma_falls_at_every_accepted_step_and_rests_at_the_usual_one(test_every, capturable):
    model = network()
    usual = 10 / size(model)
    optimizer = SR2(model, sigma=3 * usual, test_every=test_every, capturable=capturable, rule=Tolerant(eta2=0.9999))
    train(model, optimizer, 20)
    assert optimizer.rule.usual == pytest.approx(usual)
    assert optimizer.counts["rejected"] == 0
    assert optimizer.sigma == pytest.approx(3 * usual * 0.98**20)
    train(model, optimizer)
    assert 0.97 * usual < optimizer.sigma <= usual


def test_a_smaller_sigma_is_left_to_rho():
    model = network()
    optimizer = SR2(model, sigma=5 / size(model), rule=Tolerant(eta2=0.9999))
    first = train(model, optimizer, 1).sigma
    assert train(model, optimizer, 20).sigma == first


def test_of_normal_weights_the_size_is_their_root_mean_square_and_few_large_ones_do_not_decide_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 3))
    for p in model.parameters():
        nn.init.normal_(p, std=0.02)
    usual = train_once(model).rule.usual
    assert usual == pytest.approx(10 / 0.02, rel=0.03)
    with torch.no_grad():
        model[0].weight[0] *= 50  # one entry in a hundred, as of a SIREN: the root mean square is then five times 0.02
    assert usual / 2 < train_once(model).rule.usual < usual


def train_once(model):
    optimizer = SR2(model)
    optimizer.step(lambda: F.cross_entropy(model(torch.ones(4, 100)), torch.tensor([0, 1, 2, 0])))
    return optimizer


def test_zeros_do_not_count():
    model = network()
    with torch.no_grad():
        model[0].weight[:, ::2] = 0
    optimizer = train(model, SR2(model, KeepZeros()), 1)
    assert optimizer.rule.usual == pytest.approx(10 / size(network()), rel=0.1)


@pytest.mark.parametrize("penalty", [L0Ball(density=0.5), NM(2, 4), KeepZeros(), L1(1e-3), L0(1e-5), None], ids=str)
def test_every_regularizer_has_a_warm_up(penalty):
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = 0  # for KeepZeros
    assert math.isfinite(train(model, SR2(model, penalty, steps=60), 1).rule.usual)


class Twice(Adam):
    """A diagonal of one's own is not Adam's, whatever its parent is."""

    def update(self, xs, gs, states):
        D, news = super().update(xs, gs, states)
        return [2 * d for d in D], news


@pytest.mark.parametrize("metric", [None, "adagrad", "andrei", Twice()], ids=str)
def test_no_warm_up_where_a_step_is_not_to_be_compared_with_the_weights(metric):
    """Only Adam and RMSprop have steps of about 1 / sigma."""
    model = network()
    assert train(model, SR2(model, metric=metric), 1).rule.usual == math.inf


def test_it_is_saved_with_the_optimizer_and_not_chosen_again():
    model = network()
    optimizer = train(model, SR2(model), 5)
    other = SR2(model)
    other.load_state_dict(optimizer.state_dict())
    with torch.no_grad():
        model[0].weight.mul_(7)
    train(model, other, 1)
    assert other.rule == optimizer.rule


@pytest.mark.parametrize("wrong", [-1.0, 0, math.nan, True, None, "Auto", "10"], ids=str)
def test_a_wrong_one_is_one_sentence(wrong):
    with pytest.raises(ValueError, match=f"usual must be a sigma above 0.*math.inf.*'auto', and is {wrong!r}"):
        Tolerant(usual=wrong)


@pytest.mark.parametrize(
    ("name", "there"), [("usual", "usual"), ("warmup", "usual"), ("longest", "longest"), ("rise", "rise")]
)
def test_where_it_belongs_is_said(name, there):
    with pytest.raises(TypeError, match=rf"SR2 has no .*rule=sr2.rules.Tolerant\({there}=...\)"):
        SR2(network(), **{name: 100})


def test_a_usual_that_is_named_is_not_chosen():
    assert not Tolerant(usual=3.0).undecided
    assert Tolerant(usual=3.0).choose(0.0, 0.1) == {}
    assert Tolerant(longest=2.0).choose(0.0, 0.1) == {"usual": pytest.approx(100.0)}
    assert not Ratio(gamma3=0.8).undecided


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 30), nn.LayerNorm(30), nn.Tanh(), nn.Linear(30, 3))


@pytest.mark.parametrize("params", [lambda m: m, lambda m: param_groups(m, [("*", L1(0.0))])], ids=["module", "groups"])
def test_a_network_that_was_trained_before_has_none(params):
    model = normed()
    first = train(model, SR2(params(model)), 10)
    assert first.rule.usual == pytest.approx(10 / size(normed()))
    again = train(model, SR2(params(model)), 1)
    assert again.rule.usual == math.inf
    resumed = SR2(params(model))
    resumed.load_state_dict(first.state_dict())  # the same run goes on with what it had
    assert resumed.rule.usual == first.rule.usual


def test_a_scale_that_begins_small_is_none_that_was_trained():
    model = normed()
    torch.nn.init.constant_(model[1].weight, 1e-5)
    assert train(model, SR2(model), 1).rule.usual == pytest.approx(10 / size(normed()))


def test_who_names_the_usual_sigma_has_it():
    model = normed()
    train(model, SR2(model), 10)
    assert train(model, SR2(model, rule=Tolerant(usual=50.0)), 1).rule.usual == 50.0
