"""Small tensors that are one to a step, with their states, and large ones that are cut. Oracle: the loop, tensor by
tensor, to the bit."""

import copy

import pytest
import torch
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, ProxGEN
from sr2.optim.moves import choose, flat, laid
from sr2.optim.moves.base import ByGroup
from sr2.optim.moves.laid import InStrips
from sr2.optim.parts.metrics import Adam
from tests.tools import LargeTensors


class Branches(nn.Module):
    """One layer takes part in some steps only, one parameter is a number, one layer lies otherwise in memory."""

    def __init__(self):
        super().__init__()
        self.first, self.sometimes, self.last = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last.weight = nn.Parameter(torch.randn(9, 3).T)
        self.detour = True

    def forward(self, x):
        y = self.first(x).tanh()
        return self.last(y + self.scale * self.sometimes(y) if self.detour else y)


def change_nothing(optimizer, model, t):
    pass


def leave_a_layer_out(optimizer, model, t):
    model.detour = t % 4 != 2


def freeze_a_layer(optimizer, model, t):
    model.sometimes.weight.requires_grad_(t < 3)


def replace_a_state(optimizer, model, t):
    if t == 4:
        optimizer.state[model.first.weight]["momentum"] = torch.ones(9, 6)


def write_a_state(optimizer, model, t):
    if t == 4:
        optimizer.state[model.first.weight]["momentum"].fill_(0.5)


def replace_a_weight(optimizer, model, t):
    if t == 4:
        optimizer.state[model.last.bias]["momentum_weight"] = 0.5


def forget_all(optimizer, model, t):
    if t == 4:
        optimizer.state.clear()


def change_a_decay(optimizer, model, t):
    """Of the first group, so that groups which had one have two, and then one again."""
    optimizer.param_groups[0]["weight_decay"] = 0.3 if 2 < t < 6 else 0.1


def load(optimizer, model, t):
    if t == 4:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


CHANGES = [
    *(change_nothing, leave_a_layer_out, freeze_a_layer, replace_a_state, write_a_state),
    *(replace_a_weight, forget_all, change_a_decay, load),
]


def three(m):
    """Groups with an R each, and one without, whose tensors lie side by side in a step."""
    of = [{"params": m.first.parameters(), "regularizer": L1(1e-3)}, {"params": m.sometimes.parameters()}]
    return [*of, {"params": [m.scale, *m.last.parameters()], "regularizer": L0(1e-5)}]


MAKERS = {
    "proxgen": lambda m, **o: ProxGEN(m, L1(1e-3), 0.02, momentum=0.9, metric="adam", weight_decay=0.1, **o),
    "proxgen without a metric": lambda m, **o: ProxGEN(m, None, 0.02, momentum=0.9, weight_decay=0.1, **o),
    "sr2": lambda m, **o: SR2(m, sigma=20.0, weight_decay=0.1, **o),
    "sr2 l1": lambda m, **o: SR2(m, L1(1e-3), sigma=20.0, weight_decay=0.1, **o),
    "sr2 three": lambda m, **o: SR2(three(m), sigma=20.0, weight_decay=0.1, **o),
    "sr2 budget": lambda m, **o: SR2(m, L0Ball(density=0.5), sigma=20.0, reach=(1, 6), weight_decay=0.1, **o),
    "sr2 budget of all": lambda m, **o: SR2(m, L0Ball(density=0.5), sigma=20.0, penalize="all", weight_decay=0.1, **o),
    "sr2 budget without a metric": lambda m, **o: SR2(m, L0Ball(k=60), sigma=20.0, metric=None, reach=(1, 6), **o),
    "proxgen budget": lambda m, **o: ProxGEN(m, L0Ball(k=40), 0.02, momentum=0.9, metric="adam", weight_decay=0.1, **o),
    "sr2 without a metric": lambda m, **o: SR2(m, sigma=20.0, metric=None, weight_decay=0.1, **o),
}


def run(make, change, dtype, **options):
    torch.manual_seed(0)
    model = Branches().to(dtype)
    x, y = torch.randn(40, 6, dtype=dtype), torch.randn(40, 3, dtype=dtype)
    optimizer = make(model, **options)
    for t in range(8):
        change(optimizer, model, t)
        optimizer.step(lambda: nn.functional.mse_loss(model(x).float(), y.float()))
    return model, optimizer


@pytest.fixture(params=["laid", "cut"])
def strips(request, monkeypatch):
    """As usual; or of no small tensors, and of parts as short as they can be."""
    if request.param == "cut":
        monkeypatch.setattr(choose, "SMALL", -1)
        monkeypatch.setattr(flat, "_run", lambda size: 4)
        monkeypatch.setattr(laid, "STRIP", 16)


@pytest.mark.filterwarnings("ignore:.* were frozen with more nonzeros")  # freeze_a_layer, under a budget
@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MAKERS)
def test_tensors_in_strips_are_those_of_the_loop(name, change, dtype):
    (one, first), (other, second) = (run(MAKERS[name], change, dtype, foreach=f) for f in (None, False))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert first.state[a].keys() == second.state[b].keys()
        for key, value in first.state[a].items():
            found = second.state[b][key]
            assert torch.equal(value, found) if isinstance(value, torch.Tensor) else value == found, key


@pytest.mark.parametrize(
    "of", [lambda m: (m,), lambda m: (m, L1(1e-3)), lambda m: (three(m),)], ids=["", "l1", "three"]
)
def test_they_are_one_to_the_metric(of):
    """Or the test above would compare the loop with itself."""
    seen = []

    class Seen(Adam):
        entrywise = True

        def update(self, xs, gs, states):
            seen.append(len(xs))
            return super().update(xs, gs, states)

    run(lambda m, **o: SR2(*of(m), sigma=20.0, metric=Seen(), **o), change_nothing, torch.float32)
    assert seen == [1] * 8


def test_large_tensors_are_cut(monkeypatch):
    """Or the test above would compare whole tensors with themselves; of 5 runs and a rest, parts of about one size."""
    monkeypatch.setattr(laid, "STRIP", 3 * flat.RUN)
    x = nn.Parameter(torch.randn(5 * flat.RUN + 1))
    optimizer = SR2([x], sigma=20.0)
    optimizer.step(lambda: x.square().sum())
    assert [piece[0][0].numel() // flat.RUN for piece in optimizer._moves._made[0][1]._moved] == [3, 2, 0]


def test_a_state_of_others_is_not_written(monkeypatch):
    """Two rooms take turns: what was loaded, or given by hand, is read and left as it is."""
    monkeypatch.setattr(laid, "STRIP", flat.RUN)
    x, given = nn.Parameter(torch.randn(3 * flat.RUN)), torch.ones(3 * flat.RUN)
    optimizer = SR2([x], sigma=20.0)
    for t in range(6):
        if t == 2:
            optimizer.state[x]["momentum"] = given
        optimizer.step(lambda: x.square().sum())
    assert torch.equal(given, torch.ones(3 * flat.RUN))
    assert optimizer.state[x]["momentum"] is not given


@pytest.mark.parametrize(("regularizer", "seen"), [(None, 4), (L1(1e-3), 4), (L0(1e-5), 4), (L0Ball(k=9), 5)], ids=str)
def test_a_step_with_the_defaults_makes_no_large_tensor(regularizer, seen):
    """What momentum and metric remember has two tensors each, in turns; a budget has its scores."""
    n = 3_000_000
    x, g = nn.Parameter(torch.randn(n)), 1e-3 * torch.randn(n)
    x.data[9:] = 0  # within the budget
    optimizer = SR2([x], regularizer, sigma=1e9, reach=None)

    def closure():
        x.grad = g
        return torch.ones(())

    for _ in range(5):  # the first ones are looked at closely
        optimizer.step(closure)
    counter = LargeTensors(n // 4)
    counter.seen = {x.data_ptr(), g.data_ptr()}
    with counter:
        for _ in range(4):
            optimizer.step(closure)
    assert counter.made == seen  # which is not to say made


def test_what_was_saved_stays_as_it_was():
    """A state is written in place from step to step: what a copy of it holds is not."""
    model, optimizer = run(MAKERS["sr2"], change_nothing, torch.float32)
    saved = copy.deepcopy(optimizer.state_dict())
    again = copy.deepcopy(model)
    x, y = torch.randn(40, 6), torch.randn(40, 3)
    loss = lambda m: lambda: nn.functional.mse_loss(m(x), y)  # noqa: E731
    for _ in range(3):
        optimizer.step(loss(model))
    resumed = MAKERS["sr2"](again)
    resumed.load_state_dict(saved)
    for _ in range(3):
        resumed.step(loss(again))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_no_room_is_left_behind_where_tensors_come_and_go():
    """Each time they are laid out anew; what was made for the time before goes."""
    _, optimizer = run(MAKERS["sr2"], leave_a_layer_out, torch.float32)
    assert len(optimizer._moves._buffers) == 0
    assert isinstance(optimizer._moves._made[0][1], InStrips)


def test_many_small_tensors_are_several_sets(monkeypatch):
    monkeypatch.setattr(choose, "SMALL", 100)
    monkeypatch.setattr(choose, "JOINED", 250)
    xs = [nn.Parameter(torch.randn(90)) for _ in range(7)] + [nn.Parameter(torch.randn(300))]
    optimizer = SR2(xs, L1(1e-3), sigma=20.0)
    optimizer.step(lambda: sum(x.square().sum() for x in xs))
    moved = optimizer._moves._made[0][1]._moved
    assert [xs[0].numel() for xs, _ in moved] == [180, 180, 180, 90, 300]


def test_where_nothing_is_remembered_tensors_are_laid_end_to_end_for_the_prox_alone():
    _, optimizer = run(lambda m, **o: ProxGEN(m, L1(1e-3), 0.02, **o), change_nothing, torch.float32)
    assert type(optimizer._moves._made[0][1]) is ByGroup
