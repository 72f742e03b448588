"""The average of the iterates: its weights, its zeros, on every path, saved and resumed; and batch norm anew."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, recalibrate_, sparsity
from sr2.averaging import Averaging, Polynomial
from sr2.optim.parts.averaging import move_toward

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(5, 16, 6, generator=DRAW), torch.randint(3, (5, 16), generator=DRAW)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 3))


def run(steps=7, model=None, optimizer=None, first=0, **options):
    model = network() if model is None else model
    optimizer = optimizer or SR2(
        model, **SR2.paper_defaults() | {"regularizer": L1(1e-3), "sigma": 5.0, "average": True} | options
    )
    points = []
    for t in range(first, first + steps):
        optimizer.step(lambda t=t: F.cross_entropy(model(X[t % 5]), Y[t % 5]))
        points.append([p.detach().clone() for p in model.parameters()])
    return model, optimizer, points


def inside(model, optimizer):
    with optimizer.averaged():
        return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    "options",
    [{}, {"capturable": True}, {"foreach": False, "momentum": 0.9, "metric": "adam", "sigma": 500.0}],
    ids=str,
)
@pytest.mark.parametrize("k", [0.0, 8.0])
def test_it_is_the_weighted_mean_of_the_iterates(k, options):
    model, optimizer, points = run(average=Polynomial(k), **options)
    weights = [1.0]
    for t in range(2, 8):
        w = (k + 1) / (k + t)
        weights = [*((1 - w) * old for old in weights), w]
    assert sum(weights) == pytest.approx(1)
    late = torch.tensor(10**7)
    assert float(Polynomial(k).weight(late)) == pytest.approx((k + 1) / (k + 10**7))
    for number, found in enumerate(inside(model, optimizer)):
        expected = sum(w * x[number].double() for w, x in zip(weights, points, strict=True))
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_afterwards_the_iterate_is_back_to_the_bit_also_after_an_error():
    model, optimizer, points = run()

    def fails():
        with optimizer.averaged():
            assert not torch.equal(model[0].weight, points[-1][0])
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert all(torch.equal(p, x) for p, x in zip(model.parameters(), points[-1], strict=True))


def test_afterwards_batch_norm_is_that_of_the_last_iterate_again():
    model, optimizer, _ = run()
    before = [b.clone() for b in model.buffers()]
    with optimizer.averaged():
        recalibrate_(model, X)
        assert not torch.equal(model[1].running_mean, before[0])
    assert all(torch.equal(b, old) for b, old in zip(model.buffers(), before, strict=True))


def test_a_buffer_that_nobody_can_write_does_not_keep_x_from_coming_back():
    """As the position numbers of many transformers, which are expanded."""
    model = network()
    model.register_buffer("positions", torch.arange(3.0).expand(4, -1))
    _, optimizer, points = run(model=model)
    with optimizer.averaged():
        assert not torch.equal(model[0].weight, points[-1][0])
    assert all(torch.equal(p, x) for p, x in zip(model.parameters(), points[-1], strict=True))


def test_a_checkpoint_that_is_saved_inside_is_told():
    _, optimizer, _ = run()
    with optimizer.averaged(), pytest.warns(UserWarning, match="inside averaged.*after the with block") as found:
        optimizer.state_dict()
    assert found[0].filename == __file__
    optimizer.state_dict()  # silent


def test_zeros_of_the_last_iterate_are_zeros_of_the_average():
    model, optimizer, _ = run(regularizer=L0(5e-3), steps=30)
    zeros = [p == 0 for p in model.parameters()]
    assert sparsity(model).zeros > 5
    with optimizer.averaged():
        assert all(torch.equal(p == 0, zero) for p, zero in zip(model.parameters(), zeros, strict=True) if p.dim() > 1)


def test_a_zero_that_nothing_penalizes_says_nothing_of_its_average():
    x = nn.Parameter(torch.ones(3))
    optimizer = SR2([x], None, sigma=10.0)
    optimizer.step(lambda: x.square().sum())
    with torch.no_grad():
        x.zero_()
    with optimizer.averaged():
        assert x.all()


def test_it_does_not_disturb_the_steps():
    one, _, _ = run(steps=12)
    other, _, _ = run(steps=12, average=False)
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("capturable", [False, True])
def test_it_is_saved_and_resumed_to_the_same_bits(capturable):
    model, optimizer, _ = run(steps=12, capturable=capturable)
    half, saved, _ = run(steps=6, capturable=capturable)
    state = copy.deepcopy(saved.state_dict())
    again = network()
    again.load_state_dict(half.state_dict())
    resumed = SR2(again, L1(1e-3), **SR2.paper_defaults() | {"sigma": 1.0, "average": True, "capturable": capturable})
    resumed.load_state_dict(state)
    run(steps=6, model=again, optimizer=resumed, first=6)
    assert all(torch.equal(x, y) for x, y in zip(inside(model, optimizer), inside(again, resumed), strict=True))


@pytest.mark.parametrize("looking", [True, False])
def test_of_bfloat16_parameters_it_moves_by_less_than_1_in_256(looking):
    """Between two neighbours in bfloat16: an average in bfloat16 stays at the first for good."""
    low, high = torch.tensor([1.0, 1.0 + 1 / 128]).bfloat16()
    x, state = low[None].clone(), {}
    for t in range(1, 401):
        x.fill_(low if t == 1 else high)
        Polynomial(0.0).update([x], {x: state}, torch.tensor(t), partial(move_toward, looking=looking))
    assert state["average"].dtype == torch.float32
    assert float(state["average"]) == pytest.approx(1 + 399 / 400 / 128, abs=1e-5)


def test_of_bfloat16_parameters_what_is_remembered_is_float32_also_after_a_load():
    model = network().bfloat16()
    options = {"metric": "adam", "momentum": 0.9, "sigma": 500.0, "average": True}
    optimizer = SR2(model, L1(1e-3), **options)

    def steps(model, optimizer, first, last):
        for t in range(first, last):
            optimizer.step(lambda t=t: F.cross_entropy(model(X[t % 5].bfloat16()).float(), Y[t % 5]))

    steps(model, optimizer, 0, 6)
    other = copy.deepcopy(model)
    resumed = SR2(other, L1(1e-3), **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one in (optimizer, resumed):
        kinds = {name: {s[name].dtype for s in one.state.values()} for name in ("average", "square", "momentum")}
        assert kinds == {"average": {torch.float32}, "square": {torch.float32}, "momentum": {torch.bfloat16}}
    average = optimizer.state[model[0].weight]["average"]
    assert not torch.equal(average.bfloat16().float(), average)
    steps(model, optimizer, 6, 12)
    steps(other, resumed, 6, 12)
    assert all(torch.equal(x, y) for x, y in zip(inside(model, optimizer), inside(other, resumed), strict=True))
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("metric", ["adam", "rmsprop", "adagrad"])
def test_the_second_moment_of_bfloat16_gradients_does_not_freeze(metric):
    from sr2.optim.parts.metrics import as_metric

    states = [[{}], [{}]]
    g = torch.full((3,), 1e-3)
    for t in range(1500):
        for dtype, state in zip((torch.bfloat16, torch.float32), states, strict=True):
            now = (g if t else 10 * g).to(dtype)
            (d,), (state[0],) = as_metric(metric).update([now], [now], state)
            if dtype == torch.bfloat16:
                found = d
    torch.testing.assert_close(found, d, rtol=1e-2, atol=0)


def test_an_average_of_ones_own():
    class Last(Averaging):
        def weight(self, t):
            return torch.ones_like(t, dtype=torch.float64)

    model, optimizer, points = run(average=Last())
    for x, y in zip(inside(model, optimizer), points[-1], strict=True):
        torch.testing.assert_close(x, y)


def test_wrong_calls():
    with pytest.raises(ValueError, match=r"there is no average: make the optimizer with SR2\(..., average=True\)"):
        SR2(network(), average=False).averaged()
    with pytest.raises(TypeError, match=r"average must be True, False or an object of sr2.averaging, and is 8"):
        SR2(network(), average=8)


def test_batch_norm_anew():
    model = network()
    model.eval()
    model[1].momentum = 0.3
    recalibrate_(model, [(x, None) for x in X])
    z = model[0](X)
    torch.testing.assert_close(model[1].running_mean, z.mean(1).mean(0).detach())
    torch.testing.assert_close(model[1].running_var, z.var(1).mean(0).detach())
    assert model[1].momentum == 0.3
    assert not any(m.training for m in model.modules())
    before = model[1].running_mean.clone()
    with pytest.raises(ValueError, match="at least one batch"):
        recalibrate_(model, [])
    assert torch.equal(model[1].running_mean, before)
    plain = nn.Linear(2, 1)
    assert recalibrate_(plain, []) is plain
    noisy = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
    recalibrate_(noisy, [torch.full((4, 2), 3.0)])
    assert noisy[1].running_mean.tolist() == [3.0, 3.0]


def test_what_joins_late_does_not_start_at_zero():
    """A state saved without an average, and a parameter that was frozen until now."""
    model, plain, _ = run(steps=20, average=False)
    resumed = SR2(model, L1(1e-3), **SR2.paper_defaults() | {"sigma": 5.0, "average": True})
    resumed.load_state_dict(plain.state_dict())
    run(steps=1, model=model, optimizer=resumed)
    for average, p in zip(inside(model, resumed), model.parameters(), strict=True):
        torch.testing.assert_close(average, p.detach(), rtol=0, atol=0.1)
    frozen = network()
    frozen[3].bias.requires_grad_(False)
    with torch.no_grad():
        frozen[3].bias.fill_(3.0)
    _, optimizer, _ = run(steps=20, model=frozen)
    frozen[3].bias.requires_grad_(True)
    run(steps=1, model=frozen, optimizer=optimizer)
    assert bool((inside(frozen, optimizer)[-1] > 2.5).all())


def test_instance_norm_keeps_its_statistics():
    model = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True))
    model(torch.randn(8, 3, 5) + 7)
    before = model[0].running_mean.clone()
    recalibrate_(model, [torch.zeros(8, 3, 5)])
    assert torch.equal(model[0].running_mean, before)


def test_a_step_inside_is_an_error_and_nothing_is_lost():
    model, optimizer, points = run()
    count = sum(optimizer.counts.values())
    with optimizer.averaged():
        held = model[0].weight.detach().clone()
        with pytest.raises(RuntimeError, match="leave the with block before you train on"):
            optimizer.step(lambda: F.cross_entropy(model(X[0]), Y[0]))
        assert torch.equal(model[0].weight, held)
    assert all(torch.equal(p, x) for p, x in zip(model.parameters(), points[-1], strict=True))
    run(steps=1, model=model, optimizer=optimizer)
    assert sum(optimizer.counts.values()) == count + 1
