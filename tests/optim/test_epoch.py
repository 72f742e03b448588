"""How many batches an epoch has, where nobody says: examples that come again."""

import copy
import io
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.data import DataLoader, TensorDataset

from sr2 import SR2, L0Ball
from sr2.optim.parts.epoch import Epoch

# ---- the length of an epoch


def epochs(n, size, rounds, *, drop_last=False, seed=0):
    draw = np.random.default_rng(seed)
    for _ in range(rounds):
        order = draw.permutation(n)
        for i in range(0, n - size + 1 if drop_last else n, size):
            yield order[i : i + size].tolist()


def found(batches, most=40):
    epoch = Epoch(most)
    next((None for batch in batches if epoch.take(batch)), None)
    return epoch


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 3000])
@pytest.mark.parametrize("number", [3, 4, 7, 16, 40])
def test_it_is_found_with_small_last_batches_and_without(number, size, drop_last):
    rest = size // 2
    n = number * size + (rest if drop_last else rest - size if rest else 0)
    for seed in range(5):
        epoch = found(epochs(n, size, 20, drop_last=drop_last, seed=seed))
        assert (epoch.batches, epoch.over) == (number, True)
        assert len(epoch.known) <= 513


def test_it_is_found_by_the_time_the_second_epoch_has_four_batches():
    assert found(epochs(6 * 32, 32, 2)).taken == 10
    assert found(epochs(3 * 2, 2, 5)).taken == 11


@pytest.mark.parametrize("size", [1, 3, 32])
def test_examples_that_are_drawn_with_replacement_have_no_epochs(size):
    for seed, n in itertools.product(range(10), (12 * size, 40 * size)):
        draw = np.random.default_rng(seed)
        batches = (draw.integers(0, n, size).tolist() for _ in range(100))
        assert not 0 < found(batches).batches < n // size // 2


def test_an_epoch_that_began_before_the_first_step_is_not_taken_for_a_whole_one():
    for seed in range(10):
        batches = list(epochs(12 * 16, 16, 3, seed=seed))
        assert found(batches[6:]).batches == 0


def test_a_long_epoch_new_examples_and_none_at_all():
    assert found(epochs(41 * 4, 4, 2)).batches == 0
    assert found([[3 * t, 3 * t + 1, 3 * t + 2] for t in range(50)]).batches == 0
    assert found([[]]).over
    assert not found([[]]).known


@pytest.mark.parametrize("first", [2, 1023])
def test_there_is_a_bound_to_what_is_remembered(first):
    """Of batches of one size it is not met; after a small first batch it ends the search."""
    assert found(epochs(40 * first, first, 2)).batches == 40
    epoch, batches = Epoch(40), epochs(30 * 8192, 8192, 1)
    assert not epoch.take(list(range(-first, 0)))
    assert any(epoch.take(batch) for batch in batches)
    assert not epoch.known


@pytest.mark.parametrize(("share", "number"), [(0.04, 8), (0.5, 0)])
def test_a_few_equal_rows_are_borne(share, number):
    alike = int(share * 256)
    of = [0] * alike + list(range(1, 257 - alike))
    assert found([of[i] for i in batch] for batch in epochs(256, 32, 2)).batches == number


def test_a_small_last_batch_of_rows_that_came_before_is_no_epoch():
    for seed in range(100):
        of = [0] * 6 + list(range(6, 97))
        batches = ([of[i] for i in batch] for batch in epochs(97, 16, 3, seed=seed))
        assert found(batches).batches == 7


def test_a_probe_that_comes_with_every_batch_is_no_epoch():
    assert found(batch + [-1] * 8 for batch in epochs(8 * 16, 16, 2)).batches == 0


# ---- in SR2


def network(width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))


def table(n=96, width=4):
    torch.manual_seed(1)
    return torch.randn(n, width), torch.randn(n, 1)


def loader(n=96, size=16, **options):
    return DataLoader(
        TensorDataset(*table(n)), size, shuffle=True, generator=torch.Generator().manual_seed(0), **options
    )


def examples(rounds, **options):
    batches = loader(**options)
    return [batch for _ in range(rounds) for batch in batches]


def train(model, optimizer, batches):
    for x, y in batches:
        optimizer.step(lambda x=x, y=y: F.mse_loss(model(x), y))


def heart_of(optimizer):
    return optimizer._search.heart


@pytest.mark.parametrize("n", [96, 90, 40, 3 * 16])
def test_the_number_of_batches_of_a_loader_is_found(n):
    model = network()
    optimizer = SR2(model)
    train(model, optimizer, examples(6, n=n))
    assert heart_of(optimizer).batches == len(loader(n))
    assert heart_of(optimizer).pairs > 0
    assert optimizer.counts["null"] > 0
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_batch_are_one_batch(parts):
    model = network()
    optimizer = SR2(model)
    for x, y in examples(2):
        pairs = list(zip(x.split(16 // parts), y.split(16 // parts), strict=True))
        optimizer.step(lambda pairs=pairs: [F.mse_loss(model(a), b) / parts for a, b in pairs])
    assert heart_of(optimizer).batches == 6


def test_w_stays_until_examples_are_learnt_by_heart():
    model = network()
    optimizer = SR2(model)
    train(model, optimizer, examples(2))
    group, heart = optimizer.param_groups[0], heart_of(optimizer)
    assert group["weight_decay"] == pytest.approx(0.0036 * optimizer.rule.usual_sigma / 10)
    assert optimizer._search.decay_of(group) == group["weight_decay"]
    heart.pairs, heart.agreement, heart.log_square, heart.log_squares = 0, 0.0, 0.0, 0.0
    for _ in range(3):
        heart.take(0.0, 1.0)
    assert optimizer._search.decay_of(group) == pytest.approx(2.8 / 6 / 0.0036 * group["weight_decay"])


@pytest.mark.parametrize(
    "options",
    [{"weight_decay": 0.1}, {"regularizer": L0Ball(density=0.5)}, {"capturable": True}, {"metric": None, "sigma": 9.0}],
    ids=str,
)
def test_where_nothing_would_follow_nothing_is_looked_at(options):
    model = network()
    optimizer = SR2(model, **options)
    train(model, optimizer, examples(3))
    assert heart_of(optimizer) is None or not heart_of(optimizer).batches
    assert optimizer.counts["null"] == 0


def test_parameters_alone_show_no_examples():
    model = network()
    optimizer = SR2(model.parameters())
    train(model, optimizer, examples(3))
    assert heart_of(optimizer) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_a_scripted_network_is_not_looked_at():
    """It bears no hooks."""
    model = torch.jit.script(network())
    optimizer = SR2(model, average=False)
    train(model, optimizer, examples(3))
    assert not heart_of(optimizer).batches
    assert optimizer.counts["null"] == 0


@pytest.mark.parametrize("cut", [1, 5, 6, 8, 11, 14, 15])
def test_it_resumes_to_the_same_bits(cut):
    """Also before an epoch is over, while it is made sure, and where x stays."""
    batches = examples(5)
    whole = network()
    optimizer = SR2(whole)
    train(whole, optimizer, batches)
    model = network()
    first = SR2(model)
    train(model, first, batches[:cut])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model.load_state_dict(saved["model"])
    second = SR2(model)
    second.load_state_dict(saved["optimizer"])
    train(model, second, batches[cut:])
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
    assert second.counts == optimizer.counts
    assert heart_of(second) == heart_of(optimizer)
    assert optimizer.counts["null"] >= 2


def test_a_state_goes_on_with_what_was_said_when_it_was_saved():
    model, batches = network(), examples(4)
    said = SR2(model, steps_per_epoch=6)
    train(model, said, batches[:14])
    optimizer = SR2(model)
    optimizer.load_state_dict(said.state_dict())
    assert heart_of(optimizer) == heart_of(said)
    train(model, optimizer, batches[14:])
    assert heart_of(optimizer).pairs == 3


def test_a_state_goes_on_alike_whatever_was_there():
    """Where the search has ended, and where the number was said."""
    model, batches = network(), examples(5)
    optimizer = SR2(model)
    train(model, optimizer, batches[:14])
    saved, begun = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(heart_of(optimizer))
    train(model, optimizer, [(x + 1, y) for x, y in batches[14:]])
    assert heart_of(optimizer) is None
    optimizer.load_state_dict(saved)
    assert heart_of(optimizer) == begun
    optimizer.load_state_dict(SR2(network(), steps_per_epoch=7).state_dict())
    assert heart_of(optimizer).batches == 7
    optimizer.load_state_dict(saved)
    assert heart_of(optimizer) == begun


def test_a_state_of_before_goes_on_without_it():
    model, batches = network(), examples(4)
    old = SR2(model)
    old._search.heart = None
    train(model, old, batches[:3])
    optimizer = SR2(model)
    optimizer.load_state_dict(old.state_dict())
    train(model, optimizer, batches[3:])
    assert heart_of(optimizer) is None
    assert optimizer.counts["null"] == 0


def test_a_kept_gradient_that_nobody_asks_for_is_dropped():
    model, batches = network(), examples(3)
    first = SR2(model)
    while not any("paused" in entry for entry in first.state.values()):
        train(model, first, [batches.pop(0)])
    second = SR2(model, weight_decay=0.1)
    second.load_state_dict(first.state_dict())
    assert not any("paused" in entry for entry in second.state.values())


def streams():
    """Data whose first batches come again, and later ones do not, as index sets of batches of 16."""
    chunk = lambda c, times: [b for _ in range(times) for b in (torch.randperm(96) + 96 * c).split(16)]  # noqa: E731
    torch.manual_seed(3)
    yield "shards", [b for c in range(10) for b in chunk(c, 2)]
    yield "curriculum", chunk(0, 3) + [b for c in range(1, 10) for b in chunk(c, 1)]
    new = [b for c in range(1, 10) for b in chunk(c, 1)]
    yield "alternating", [b for pair in zip(chunk(0, 9), new, strict=True) for b in pair]


@pytest.mark.parametrize(("name", "stream"), list(streams()), ids=lambda v: v if isinstance(v, str) else "")
def test_data_that_change_end_it_before_a_pair_counts(name, stream):
    x, y = table(960)
    model = network()
    optimizer = SR2(model)
    paired = 0
    for b in stream:
        optimizer.step(lambda b=b: F.mse_loss(model(x[b]), y[b]))
        paired = max(paired, 0 if heart_of(optimizer) is None else heart_of(optimizer).pairs)
    assert heart_of(optimizer) is None
    assert paired <= (1 if name == "curriculum" else 0)
    assert not any("paused" in entry for entry in optimizer.state.values())


def test_a_state_for_other_data_ends_it():
    model = network()
    first = SR2(model)
    train(model, first, examples(5))
    optimizer = SR2(model)
    optimizer.load_state_dict(first.state_dict())
    x, y = table(96)
    for b in list(torch.randperm(96).split(16)) * 4:
        optimizer.step(lambda b=b: F.mse_loss(model(x[b] + 1), y[b]))
    assert heart_of(optimizer) is None


def test_a_step_that_fails_is_no_batch_more():
    """The same batch is asked again, and another is left out."""
    model, batches = network(), examples(4)
    optimizer = SR2(model)

    def fails():
        F.mse_loss(model(batches[3][0]), batches[3][1])
        raise KeyboardInterrupt

    train(model, optimizer, batches[:3])
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(fails)
    train(model, optimizer, batches[3:])
    assert heart_of(optimizer).batches == 6


@pytest.mark.parametrize("at", [0, 4])
def test_the_search_for_sigma_is_no_batch(at):
    model, (x, y), batches = network(), table(), examples(4)
    optimizer = SR2(model, sigma=30.0)
    train(model, optimizer, batches[:at])
    optimizer.estimate_sigma(lambda: F.mse_loss(model(x), y))
    train(model, optimizer, batches[at:])
    assert heart_of(optimizer).batches == 6


def test_a_copy_looks_on_by_itself():
    model, batches = network(), examples(4)
    optimizer = SR2(model)
    train(model, optimizer, batches[:4])
    twin = copy.deepcopy({"model": model, "optimizer": optimizer})
    train(model, optimizer, batches[4:])
    assert len(heart_of(twin["optimizer"]).epoch.known) == 64
    train(twin["model"], twin["optimizer"], batches[4:])
    assert heart_of(twin["optimizer"]) == heart_of(optimizer)


@pytest.mark.parametrize("whole", [False, True], ids=["network", "loss"])
def test_a_compiled_network_is_not_looked_at_and_not_compiled_anew(whole):
    made = {}
    for decay in (0.1, "auto"):
        torch._dynamo.reset()
        model, made[decay] = network(), CompileCounterWithBackend("aot_eager")

        def loss(x, y, model=model):
            return F.mse_loss(model(x), y)

        run = torch.compile(loss if whole else model, backend=made[decay])
        optimizer = SR2(model, weight_decay=decay)
        for x, y in examples(3):
            optimizer.step(lambda x=x, y=y, run=run: run(x, y) if whole else F.mse_loss(run(x), y))
    assert made[0.1].frame_count == made["auto"].frame_count > 0
    assert not heart_of(optimizer).batches


def test_it_helps_where_targets_are_noisy_and_nothing_was_said():
    """Held-out errors, against the same run that does not look."""
    looking, blind = [], []
    for seed in range(4):
        draw = np.random.default_rng(seed)
        x = torch.tensor(draw.normal(size=(192, 12)), dtype=torch.float32)
        y = x @ torch.tensor(draw.normal(size=(12, 1)), dtype=torch.float32) / 12**0.5
        y = y / y.std() + torch.tensor(draw.normal(size=(192, 1)), dtype=torch.float32)
        for errors, looks in ((looking, True), (blind, False)):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
            optimizer = SR2(model)
            if not looks:
                optimizer._search.heart = None
            for batch in epochs(96, 16, 40, seed=seed):
                optimizer.step(lambda b=batch, m=model, x=x, y=y: F.mse_loss(m(x[b]), y[b]))
            with torch.no_grad(), optimizer.averaged():
                errors.append(float(F.mse_loss(model(x[96:]), y[96:])))
    assert sum(looking) < 0.95 * sum(blind)
