"""Whether examples are learnt by heart: the ratio, when it is asked, and what it does to the decay."""

import copy
import io
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import SR2, Box, L0Ball
from sr2.optim.parts.decay import Decay
from sr2.optim.parts.heart import KEEPS, ByHeart

K, SIZE, WIDTH = 6, 16, 12
FIRST = 8
"""The first step at which x stays."""


def rows(noise, seed=0):
    """A linear target and so much noise: K batches of SIZE rows to learn, and as many to see what was learnt."""
    draw = np.random.default_rng(seed)
    x = torch.tensor(draw.normal(size=(2 * K * SIZE, WIDTH)))
    y = x @ torch.tensor(draw.normal(size=(WIDTH, 1))) / WIDTH**0.5
    y = (1 - noise) ** 0.5 * y / y.std() + noise**0.5 * torch.tensor(draw.normal(size=(len(x), 1)))
    return x[: K * SIZE], y[: K * SIZE], x[K * SIZE :], y[K * SIZE :]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).double()


def batches(x, y, epochs, seed=0):
    draw = np.random.default_rng(seed)
    for _ in range(epochs):
        for part in draw.permutation(len(x)).reshape(K, SIZE):
            yield x[part], y[part]


def train(model, optimizer, examples):
    for x, y in examples:
        optimizer.step(lambda x=x, y=y: F.mse_loss(model(x), y))


# ---- the ratio


def heart_after(pairs, batches=K):
    heart = ByHeart(batches)
    for product, square in pairs:
        heart.take(product, square)
    return heart


def knows_all(heart):
    heart.pairs, heart.agreement, heart.log_square, heart.log_squares = 0, 0.0, 0.0, 0.0
    for _ in range(3):
        heart.take(0.0, 1.0)
    assert heart.share == 1


@pytest.mark.parametrize("batches", [3, 4, 5, 6, 12])
@pytest.mark.parametrize("q", [0.0, 1.0, 3.0, 6.0])
def test_it_is_the_signal_over_what_noise_alone_leaves(batches, q):
    """Gradients of n examples with a known S and N, asked at the steps that are due: q = (K - 1) S / N."""
    n, d, draw = batches * 8, 400, np.random.default_rng(1)
    noise = draw.normal(size=(n, d))
    noise -= noise.mean(0)
    N = float((noise**2).sum()) / (n - 1) / 8 * (1 - 1 / batches)  # of batches drawn without replacement
    mean = draw.normal(size=d)
    g = noise + mean * (q * N / (batches - 1) / (mean @ mean)) ** 0.5
    heart, agreements = ByHeart(batches), []
    for t in range(1500 * batches):
        if t % batches == 0:
            epoch = g[draw.permutation(n)].reshape(batches, 8, d).mean(1)
        if heart.due(t):
            a, b = epoch[t % batches], epoch[t % batches + 1]
            agreements.append(float(a @ b) / float(a @ a + b @ b) * 2)
    heart.take(float(np.mean(agreements)), 1.0)
    assert heart.ratio == pytest.approx(q, rel=0.05, abs=0.06)


@pytest.mark.parametrize("batches", range(3, 41))
def test_a_pair_is_of_one_epoch_and_without_its_last_batch(batches):
    """Which may be a small one; and one step of five is left out at the most, none of the first epoch."""
    heart = ByHeart(batches)
    due = [t for t in range(1000) if heart.due(t)]
    assert all(t // batches == (t + 1) // batches and (t + 1) % batches < batches - 1 for t in due)
    assert due[0] >= batches
    assert {b - a for a, b in itertools.pairwise(due)} == {batches * math.ceil(5 / batches)}


def test_it_knows_nothing_before_the_first_pairs_and_of_none_that_is_broken():
    heart = ByHeart(K)
    assert heart.ratio == math.inf
    assert heart.share == 0
    for product, square in [(math.nan, 1.0), (math.inf, 1.0), (0.5, 0.0), (0.5, math.inf), (0.5, math.nan)]:
        heart.take(product, square)
        assert heart == ByHeart(K)
    assert heart_after([(1.0, 1.0)]).ratio == math.inf
    assert heart_after([(0.0, 1.0)]).ratio < 1
    assert heart_after([(0.0, 1.0)]).share == 0
    assert heart_after([(0.0, 1.0)] * 2).share == 1


def test_of_little_noise_little_decay_is_taken():
    heart = heart_after([(0.0, 1.0)] * 20 + [(0.0, 1e-6)] * 10)
    assert heart.ratio < 1
    assert heart.share < 1e-3


def test_one_spike_does_not_hide_the_noise():
    assert heart_after([(0.0, 1e4)] + [(0.0, 1.0)] * 20).share > 0.5


@pytest.mark.parametrize(("batches", "there"), [(2, False), (3, True), (40, True), (41, False)])
def test_it_is_there_where_epochs_are_short(batches, there):
    assert (ByHeart.of(Decay(None, "auto", batches), False, True) is not None) == there


# ---- in SR2


def test_noise_that_is_learnt_by_heart_brings_decay_and_clean_targets_do_not():
    """What the optimizer cannot see in a training loss that falls to 0 in both."""
    shares = {0.0: [], 0.7: []}
    for seed, noise in itertools.product(range(3), shares):
        x, y, *_ = rows(noise, seed)
        model = network(seed)
        optimizer = SR2(model, steps=40 * K, steps_per_epoch=K)
        for number, example in enumerate(batches(x, y, 30, seed)):
            train(model, optimizer, [example])
            if number >= 10 * K:
                shares[noise].append(optimizer._search.heart.share)
    assert np.mean(shares[0.0]) < 0.05
    assert np.mean(shares[0.7]) > 0.3


def test_it_helps_where_targets_are_noisy():
    """Held-out errors, against the same run that does not look."""
    looking, blind = [], []
    for seed in range(4):
        x, y, new_x, new_y = rows(0.5, seed)
        for errors, looks in ((looking, True), (blind, False)):
            model = network(seed)
            optimizer = SR2(model, steps=40 * K, steps_per_epoch=K)
            if not looks:
                optimizer._search.heart = None
            train(model, optimizer, batches(x, y, 40, seed))
            with torch.no_grad():
                errors.append(float(F.mse_loss(model(new_x), new_y)))
    assert sum(looking) < 0.95 * sum(blind)


def test_x_stays_and_nothing_is_learnt_from_that_batch():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 2))
    train(model, optimizer, examples[:FIRST])
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    train(model, optimizer, examples[FIRST : FIRST + 1])
    after = (model.state_dict(), optimizer.state_dict()["state"])
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name])
    for number, entry in before[1].items():
        for name, value in entry.items():
            assert name == "begun" or torch.equal(torch.as_tensor(value), torch.as_tensor(after[1][number][name]))
    assert all(torch.equal(optimizer.state[p]["paused"], p.grad) for p in model.parameters())
    assert optimizer.counts["null"] == 1
    assert optimizer.last_step.accepted is None
    assert optimizer.last_step.trial_loss == optimizer.last_step.loss
    train(model, optimizer, examples[FIRST + 1 : FIRST + 2])
    assert not any("paused" in entry for entry in optimizer.state.values())
    assert optimizer._search.heart.pairs == 1
    assert optimizer.counts["null"] == 1


def test_the_pair_is_that_of_two_batches_at_one_x():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 2))
    train(model, optimizer, examples[: FIRST + 1])
    two = []
    for a, b in examples[FIRST : FIRST + 2]:
        gs = torch.autograd.grad(F.mse_loss(model(a), b), list(model.parameters()))
        two.append(torch.cat([g.flatten() for g in gs]))
    train(model, optimizer, examples[FIRST + 1 : FIRST + 2])
    square = float(two[0] @ two[0] + two[1] @ two[1]) / 2
    heart = optimizer._search.heart
    assert heart.log_squares == pytest.approx(math.log(square), rel=1e-12)
    assert heart.agreement == pytest.approx((1 - KEEPS) * float(two[0] @ two[1]) / square, rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"weight_decay": "5e-4/step"},
        {"capturable": True},
        {"metric": None, "sigma": 50.0},
        {"regularizer": L0Ball(density=0.5)},
        {"steps_per_epoch": 391},
    ],
    ids=str,
)
def test_where_w_is_not_auto_or_an_epoch_is_long_every_step_is_one(options):
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, **{"steps_per_epoch": K, **options})
    train(model, optimizer, batches(x, y, 3))
    assert optimizer.counts["null"] == 0
    assert not any("paused" in entry for entry in optimizer.state.values())


def test_biases_of_their_own_group_have_nothing_to_decide():
    x, y, *_ = rows(0.5)
    model = network()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = SR2([{"params": matrices, "weight_decay": 0.3}, {"params": others}], steps_per_epoch=K)
    train(model, optimizer, batches(x, y, 3))
    assert optimizer.counts["null"] == 0


def test_a_w_that_a_user_writes_is_taken_as_it_is():
    x, y, *_ = rows(0.9)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    train(model, optimizer, batches(x, y, 2))
    search, group = optimizer._search, optimizer.param_groups[0]
    knows_all(search.heart)
    assert search.decay_of(group) == pytest.approx(2.8 / K / 0.01 * group["weight_decay"])
    nulls = optimizer.counts["null"]
    for g in optimizer.param_groups:
        g["weight_decay"] = 0.2
    assert search.decay_of(group) == 0.2
    train(model, optimizer, batches(x, y, 4))
    assert optimizer.counts["null"] == nulls


def test_a_group_that_comes_later_has_the_faster_decay_too():
    x, y, *_ = rows(0.9)
    model, late = network(), nn.Linear(WIDTH, 1).double()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 3))
    train(model, optimizer, examples[:2])
    optimizer.add_param_group({"params": [late.weight]})
    for a, b in examples[2:]:
        optimizer.step(lambda a=a, b=b: F.mse_loss(model(a) + late(a), b))
    search = optimizer._search
    knows_all(search.heart)
    first, last = optimizer.param_groups[0], optimizer.param_groups[-1]
    assert first["weight_decay"] != last["weight_decay"]
    for group in (first, last):
        assert search.decay_of(group) == pytest.approx(2.8 / K / 0.01 * group["weight_decay"])


def test_a_kept_gradient_is_of_the_step_before_or_of_none():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 4))
    train(model, optimizer, examples[: FIRST + 1])
    model[0].requires_grad_(False)
    train(model, optimizer, examples[FIRST + 1 : FIRST + 4])
    model[0].requires_grad_(True)
    train(model, optimizer, examples[FIRST + 4 : FIRST + 5])
    assert optimizer._search.heart.pairs == optimizer.counts["null"] == 1
    train(model, optimizer, examples[FIRST + 5 : FIRST + 7])  # it stays again
    assert any("paused" in entry for entry in optimizer.state.values())
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, 3).double())], "regularizer": Box(-1, 1)})
    train(model, optimizer, examples[FIRST + 7 : FIRST + 9])
    assert not any("paused" in entry for entry in optimizer.state.values())


def test_another_number_of_batches_begins_anew():
    x, y, *_ = rows(0.7)
    model = network()
    first = SR2(model, steps_per_epoch=K)
    train(model, first, batches(x, y, 5))
    second = SR2(model, steps_per_epoch=2 * K)
    second.load_state_dict(first.state_dict())
    assert (first._search.heart.pairs, second._search.heart.pairs) == (4, 0)
    assert second._search.heart.autos == first._search.heart.autos


@pytest.mark.parametrize("cut", [8, 9, 10, 15, 21])
def test_it_resumes_to_the_same_bits(cut):
    """Also between the two batches of a pair."""
    x, y, *_ = rows(0.7)
    examples = list(batches(x, y, 8))
    whole = network()
    optimizer = SR2(whole, steps=len(examples), steps_per_epoch=K)
    train(whole, optimizer, examples)
    model = network()
    first = SR2(model, steps=len(examples), steps_per_epoch=K)
    train(model, first, examples[:cut])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model = network(seed=1)
    model.load_state_dict(saved["model"])
    second = SR2(model, steps=len(examples), steps_per_epoch=K)
    second.load_state_dict(saved["optimizer"])
    train(model, second, examples[cut:])
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert second.counts == optimizer.counts
    assert second._search.heart == optimizer._search.heart


def test_a_state_without_it_goes_on_as_before():
    """Of the releases before: no step is left out in the middle of a run."""
    x, y, *_ = rows(0.7)
    examples = list(batches(x, y, 4))
    model = network()
    old = SR2(model, steps_per_epoch=K)
    old._search.heart = None
    train(model, old, examples[: 2 * K])
    saved = old.state_dict()
    new = SR2(model, steps_per_epoch=K)
    new.load_state_dict(saved)
    train(model, new, examples[2 * K :])
    assert new.counts["null"] == 0


def test_a_gradient_that_went_through_a_run_which_does_not_ask_is_no_half_of_a_pair():
    x, y, *_ = rows(0.7)
    model = network()
    examples = list(batches(x, y, 4))
    first = SR2(model, steps_per_epoch=K)
    train(model, first, examples[: FIRST + 1])
    second = SR2(model, weight_decay=0.1)
    second.load_state_dict(first.state_dict())
    train(model, second, examples[FIRST + 1 : FIRST + 4])
    third = SR2(model, steps_per_epoch=K)
    third.load_state_dict(second.state_dict())
    train(model, third, examples[FIRST + 4 : FIRST + 6])
    assert third._search.heart.pairs == 0
    assert not any("paused" in entry for entry in third.state.values())


def test_a_loss_that_is_not_finite_is_told_also_where_x_would_stay():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 2))
    train(model, optimizer, examples[:FIRST])
    with pytest.raises(FloatingPointError, match="the loss at x_t is nan"):
        train(model, optimizer, [(examples[FIRST][0] * math.nan, examples[FIRST][1])])
    train(model, optimizer, examples[FIRST:])
    assert optimizer.counts["null"] == 1


def test_layers_that_a_batch_leaves_out_have_no_gradient():
    x, y, *_ = rows(0.5)
    model, other = network(), nn.Linear(WIDTH, 1).double()
    both = nn.ModuleList([model, other])
    optimizer = SR2(both, steps_per_epoch=K)
    for t, (a, b) in enumerate(batches(x, y, 4)):
        optimizer.step(lambda a=a, b=b, t=t: F.mse_loss(model(a) + (other(a) if t % 2 else 0.0), b))
    assert optimizer.counts["null"] == 3
    assert optimizer._search.heart.pairs == 3


def test_the_cooldown_goes_on_where_x_stays():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps=3 * K, steps_per_epoch=K)
    examples = list(batches(x, y, 3))
    train(model, optimizer, examples[: FIRST + K])
    before = optimizer.sigma
    train(model, optimizer, examples[FIRST + K : FIRST + K + 1])
    assert optimizer.counts["null"] == 2
    assert optimizer.sigma > before


def test_the_cooldown_goes_on():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps=5 * K, steps_per_epoch=K)
    train(model, optimizer, batches(x, y, 5))
    assert sum(optimizer.counts.values()) == 5 * K
    blind = SR2(network(), steps=5 * K)
    assert optimizer.sigma > 40 * optimizer._search.memory["sigma_first"].item() > 0
    assert blind.schedule == optimizer.schedule
