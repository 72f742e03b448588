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

from sr2 import SR2, L0Ball
from sr2.optim.parts.decay import AUTO_DECAY, Decay
from sr2.optim.parts.heart import KEEPS, PAIRS, ByHeart

K, SIZE, WIDTH = 6, 16, 12


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


@pytest.mark.parametrize("signal", [0.0, 0.05, 0.5, 4.0])
def test_it_is_the_signal_over_what_noise_alone_leaves(signal):
    """Gradients of n examples with a known mean and variance, in batches of an epoch: (K - 1) S / N."""
    n, d, draw = K * 8, 400, np.random.default_rng(1)
    g = draw.normal(size=(n, d))
    g += (signal**0.5 - 1) * g.mean(0)  # its mean squared is now `signal` times that of noise alone, about
    S = float((g.mean(0) ** 2).sum())
    N = float(((g - g.mean(0)) ** 2).sum()) / (n - 1) / 8 * (1 - 1 / K)  # of batches drawn without replacement
    heart = ByHeart(K)
    memory = heart.memory()
    ratios = []
    for _ in range(4000):
        a, b = g[draw.permutation(n)].reshape(K, 8, d).mean(1)[:2]
        memory |= heart.after(memory, float(a @ b), float(a @ a + b @ b) / 2)
        ratios.append(memory["agreement"] / (1 - KEEPS ** memory[PAIRS]))
    memory |= {"agreement": float(np.mean(ratios)), PAIRS: 1e6}
    assert heart.ratio(memory) == pytest.approx((K - 1) * S / N, rel=0.05, abs=0.03)


def test_it_knows_nothing_before_the_first_pair_and_of_none_that_is_broken():
    heart = ByHeart(K)
    memory = heart.memory()
    assert heart.ratio(memory) == math.inf
    assert heart.share(memory) == 0
    for product, square in [(math.nan, 1.0), (math.inf, 1.0), (0.5, 0.0), (0.5, math.inf), (0.5, math.nan)]:
        assert heart.after(memory, product, square) == {}
    whole = heart.after(memory, 1.0, 1.0)
    assert heart.ratio(whole) == math.inf
    first = heart.after(memory, 0.0, 1.0)
    assert heart.ratio(first) < 1
    assert heart.share(first) == 0  # what was seen once is not known by heart
    assert heart.share(heart.after(first, 0.0, 1.0)) == 1


def test_of_little_noise_little_decay_is_taken():
    heart = ByHeart(K)
    memory = heart.memory()
    for square in [1.0] * 5 + [1e-6] * 30:
        memory |= heart.after(memory, 0.0, square)
    assert heart.ratio(memory) < 1
    assert heart.share(memory) < 1e-3


@pytest.mark.parametrize(("batches", "there"), [(None, False), (1, False), (2, True), (40, True), (41, False)])
def test_it_is_there_where_epochs_are_short(batches, there):
    assert (ByHeart.of(Decay(None, "auto", batches), False) is not None) == there


@pytest.mark.parametrize("batches", [2, 5, 6, 62])
def test_x_stays_once_per_epoch_and_at_one_of_five_steps_at_the_most(batches):
    due = [t for t in range(1000) if ByHeart(batches).due(t)]
    assert due[0] >= 2
    assert {b - a for a, b in itertools.pairwise(due)} == {max(5, batches)}


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
                search = optimizer._search
                shares[noise].append(search.heart.share(search.memory))
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
    train(model, optimizer, examples[:3])
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    train(model, optimizer, examples[3:4])  # t = 3
    after = (model.state_dict(), optimizer.state_dict()["state"])
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name])
    for number, entry in before[1].items():
        for name, value in entry.items():
            assert name == "begun" or torch.equal(torch.as_tensor(value), torch.as_tensor(after[1][number][name]))
    assert all(torch.equal(optimizer.state[p]["paused"], p.grad) for p in model.parameters())
    assert optimizer.counts["null"] == 1
    assert optimizer.last_step.accepted is None
    assert math.isfinite(optimizer.last_step.loss)
    train(model, optimizer, examples[4:5])
    assert not any("paused" in entry for entry in optimizer.state.values())
    assert float(optimizer._search.memory[PAIRS]) == 1
    assert optimizer.counts["null"] == 1


def test_the_pair_is_that_of_two_batches_at_one_x():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 1))
    train(model, optimizer, examples[:4])
    two = []
    for a, b in examples[3:5]:
        gs = torch.autograd.grad(F.mse_loss(model(a), b), list(model.parameters()))
        two.append(torch.cat([g.flatten() for g in gs]))
    train(model, optimizer, examples[4:5])
    square = float(two[0] @ two[0] + two[1] @ two[1]) / 2
    memory = optimizer._search.memory
    assert float(memory["squares"]) == pytest.approx(square, rel=1e-12)
    assert float(memory["agreement"]) == pytest.approx((1 - KEEPS) * float(two[0] @ two[1]) / square, rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"weight_decay": "5e-4/step"},
        {"capturable": True},
        {"metric": None, "sigma": 50.0},
        {"regularizer": L0Ball(density=0.5)},
        {"steps_per_epoch": None},
        {"steps_per_epoch": 391},
    ],
    ids=str,
)
def test_where_w_is_not_auto_or_an_epoch_is_long_every_step_is_one(options):
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, **{"steps_per_epoch": K, **options})
    train(model, optimizer, batches(x, y, 2))
    assert optimizer.counts["null"] == 0
    assert not any("paused" in entry for entry in optimizer.state.values())


def test_a_w_that_a_user_writes_is_taken_as_it_is():
    x, y, *_ = rows(0.9)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    train(model, optimizer, batches(x, y, 6))
    search, (group,) = optimizer._search, optimizer.param_groups[:1]
    search.memory[PAIRS].fill_(5), search.memory["agreement"].fill_(0.0)
    search.memory["square"].fill_(1 - KEEPS**5), search.memory["squares"].fill_(1.0)
    assert search.decay_of(group) == pytest.approx(2.8 / K / 0.01 * float(search.memory[AUTO_DECAY]))
    group["weight_decay"] = 0.2
    assert search.decay_of(group) == 0.2


@pytest.mark.parametrize("cut", [3, 4, 5, 10, 17])
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
    assert second._search.memory == optimizer._search.memory


def test_a_state_without_it_goes_on_as_before():
    """Of the releases before: no step is left out in the middle of a run."""
    x, y, *_ = rows(0.7)
    examples = list(batches(x, y, 4))
    model = network()
    old = SR2(model, steps_per_epoch=K)
    old._search.heart, old._search.memory = None, {}
    train(model, old, examples[: 2 * K])
    saved = old.state_dict()
    new = SR2(model, steps_per_epoch=K)
    new.load_state_dict(saved)
    train(model, new, examples[2 * K :])
    assert new.counts["null"] == 0


def test_a_loss_that_is_not_finite_is_told_also_where_x_would_stay():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps_per_epoch=K)
    examples = list(batches(x, y, 1))
    train(model, optimizer, examples[:3])
    with pytest.raises(FloatingPointError, match="the loss at x_t is nan"):
        train(model, optimizer, [(examples[3][0] * math.nan, examples[3][1])])
    train(model, optimizer, examples[3:])
    assert optimizer.counts["null"] == 1


def test_layers_that_a_batch_leaves_out_have_no_gradient():
    x, y, *_ = rows(0.5)
    model, other = network(), nn.Linear(WIDTH, 1).double()
    both = nn.ModuleList([model, other])
    optimizer = SR2(both, steps_per_epoch=K)
    for t, (a, b) in enumerate(batches(x, y, 3)):
        optimizer.step(lambda a=a, b=b, t=t: F.mse_loss(model(a) + (other(a) if t % 2 else 0.0), b))
    assert optimizer.counts["null"] == 3
    assert float(optimizer._search.memory[PAIRS]) == 3


def test_the_cooldown_goes_on():
    x, y, *_ = rows(0.5)
    model = network()
    optimizer = SR2(model, steps=5 * K, steps_per_epoch=K)
    train(model, optimizer, batches(x, y, 5))
    assert sum(optimizer.counts.values()) == 5 * K
    blind = SR2(network(), steps=5 * K)
    assert optimizer.sigma > 40 * optimizer._search.memory["sigma_first"].item() > 0
    assert blind.schedule == optimizer.schedule
