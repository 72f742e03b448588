"""sparsity and prune_: what is counted, how often, and what a threshold means."""

import math

import pytest
import torch
from torch import nn

from sr2 import SR2, keep_zeros, prune_, sparsity


def layer(values, dtype=torch.float32):
    model = nn.Linear(len(values), 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values], dtype=dtype))
    return model


def test_totals_and_tensors():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].weight[:, 1] = 0.0
        model[0].bias.fill_(2.0)
        model[2].weight.fill_(-1.0)
        model[2].bias.fill_(3.0)
    report = sparsity(model)
    assert (report.zeros, report.total) == (3 + 3, 12 + 3 + 3 + 3 + 6 + 2)
    assert report.fraction == 6 / 29
    counts = {t.name: (t.shape, t.zeros, t.total, t.fraction) for t in report.tensors}
    assert counts["0.weight"] == ((3, 4), 3, 12, 0.25)
    assert counts["1.bias"] == ((3,), 3, 3, 1.0)
    assert counts["2.weight"] == ((2, 3), 0, 6, 0.0)
    assert list(counts) == [name for name, _ in model.named_parameters()]


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert sparsity(model).total == 9
    assert len(sparsity(model).tensors) == 1


def test_special_numbers():
    """-0.0 is zero; NaN and what is denormal are not."""
    model = layer([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 1.0])
    assert sparsity(model).zeros == 2
    assert sparsity(model, 1e-30).zeros == 3
    after = prune_(model, 1e-30)
    assert after.zeros == 3
    weight = model.weight.detach()[0]
    assert weight[2].isnan()
    assert weight[3:5].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_thresholds_are_inclusive(dtype):
    """The threshold is rounded as the weights are: 0.1 itself is neither a float32 nor a bfloat16."""
    model = layer([0.1, -0.1, 0.2, 0.0], dtype)
    assert sparsity(model, 0.1).zeros == 3
    assert sparsity(model, 0.099).zeros == 1
    assert prune_(model, 0.1).zeros == 3
    assert model.weight.dtype == dtype
    assert (model.weight.detach() != 0).tolist() == [[False, False, True, False]]


def test_prune_is_in_place_and_keeps_the_rest():
    torch.manual_seed(0)
    model = nn.Linear(50, 4)
    before, parameter = model.weight.detach().clone(), model.weight
    report = prune_(model, 0.05)
    assert model.weight is parameter
    assert parameter.requires_grad
    small = before.abs() <= 0.05
    assert small.any()
    assert (model.weight.detach()[small] == 0).all()
    assert torch.equal(model.weight.detach()[~small], before[~small])
    assert report == sparsity(model)
    assert report.threshold == 0.0
    assert prune_(model, 0.0) == report  # nothing more to do


def test_named_tensors_are_a_model_too():
    tensors = [("a", torch.tensor([0.0, 1.0])), ("b", torch.tensor(0.0)), ("c", torch.empty(0, 3))]
    report = sparsity(iter(tensors))
    assert (report.zeros, report.total) == (2, 3)
    assert report.tensors[2].fraction == 0.0
    assert prune_(tensors, 2.0).fraction == 1.0


def test_a_state_dict_may_hold_masks_and_counters():
    state = {"weight": torch.tensor([0.0, 0.1, 2.0]), "mask": torch.tensor([True, False]), "steps": torch.tensor(3)}
    assert [t.zeros for t in sparsity(state).tensors] == [1, 1, 0]
    assert [t.zeros for t in prune_(state, 0.5).tensors] == [2, 1, 0]
    assert state["mask"].tolist() == [True, False]


def test_nothing_at_all():
    assert (sparsity(nn.ReLU()).zeros, sparsity(nn.ReLU()).total, sparsity(nn.ReLU()).fraction) == (0, 0, 0.0)
    assert "total" in str(sparsity(nn.ReLU()))


@pytest.mark.parametrize("count", [sparsity, lambda model: prune_(model, 0.1)], ids=["sparsity", "prune_"])
def test_what_is_no_model(count):
    optimizer = torch.optim.SGD([torch.zeros(3)], 0.1)
    with pytest.raises(TypeError, match="give a model, or its tensors, and not a SGD"):
        count(optimizer)


def test_it_prints_as_a_table():
    model = nn.Sequential(nn.Linear(100, 20), nn.ReLU(), nn.Linear(20, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
        model[0].weight[:, :50] = 0.0
    assert str(sparsity(model)).splitlines() == [
        "parameter  shape    zero     of    share",
        "0.weight   20x100  1,000  2,000  50.00 %",
        "0.bias     20          0     20   0.00 %",
        "2.weight   1x20        0     20   0.00 %",
        "2.bias     1           0      1   0.00 %",
        "total              1,000  2,041  49.00 %",
    ]
    assert "|w| <= 0.001" in str(sparsity(model, 1e-3))
    assert len({len(line) for line in str(sparsity(model)).splitlines()}) == 1


@pytest.mark.parametrize("wrong", [-1e-3, math.nan, math.inf, "0.1", None, True])
def test_a_wrong_threshold(wrong):
    model = layer([1.0])
    with pytest.raises(ValueError, match="sparsity: threshold must be a number at least 0"):
        sparsity(model, wrong)
    with pytest.raises(ValueError, match="prune_: alpha must be a number at least 0"):
        prune_(model, wrong)
    assert model.weight.item() == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.AdamW(ps, 0.1, weight_decay=0.1),
        lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True),
        lambda ps: torch.optim.Adam(ps, 0.1, amsgrad=True, foreach=False),
    ],
    ids=["adamw", "sgd", "adam"],
)
def test_zeros_stay_zero_under_any_optimizer(make):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 1)), torch.randn(32, 20)
    optimizer = make(model.parameters())

    def step():
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()

    step()  # momentum is on its way
    prune_(model[0].weight.detach()[None], 0.05)
    zeros = (model[0].weight == 0).clone()
    handle = keep_zeros(model, optimizer)
    before = model[0].weight.detach().clone()
    for _ in range(5):
        step()
        assert torch.equal(model[0].weight == 0, zeros)
    assert zeros.any()
    assert (model[0].weight != before)[~zeros].all()
    handle.remove()
    step()
    assert model[0].weight[zeros].any()


def test_an_optimizer_of_another_model_is_an_error():
    model, other = layer([0.0, 1.0]), layer([0.0, 2.0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="this SGD steps none of the 1 tensors of Linear: give the optimizer of this"):
        keep_zeros(other, optimizer)
    for same in (model, model.state_dict(), [*other.parameters(), *model.parameters()]):
        keep_zeros(same, optimizer)


@pytest.mark.parametrize("options", [{}, {"test_every": 2}], ids=str)
def test_what_is_kept_is_zero_in_the_average_too(options):
    """SR2 averages x as its step leaves it, before it is zero again; the average is what is saved."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 4), torch.randn(32, 8), torch.randn(32, 4)
    with torch.no_grad():
        model.weight[:, :4] = 0
        model.bias[0] = 0
    optimizer = SR2(model, **options)
    keep_zeros(model, optimizer)
    for _ in range(6):
        optimizer.step(lambda: nn.functional.mse_loss(model(x), y))
    with optimizer.averaged():
        assert not model.weight[:, :4].any()
        assert not model.bias[0]
        assert model.weight[:, 4:].all()
