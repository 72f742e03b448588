"""Code that shrink follows: what it knows stays right, and what it does not know is named, with nothing changed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import channel_groups
from sr2.export import shrink
from sr2.export.trace import UnknownOperationError

from .networks import assert_same


class Odd(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 6), nn.Linear(6, 2), function

    def forward(self, x):
        return self.b(self.function(self.a(x)))


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda x: x.cumsum(-1), "cumsum"),
        (lambda x: torch.fft.fft(x).real, "fft"),
        (lambda x: torch.sort(x).values, "sort"),
        (lambda x: x if x.sum() > 0 else -x, "torch.fx"),
        (lambda x: x if x.sum().item() > 0 else -x, "torch.fx"),
        (lambda x: x[:, torch.tensor([1, 0, 2, 3, 4, 5])], "index"),
        (lambda x: F.linear(x, torch.ones(6, 6)), "linear"),
        (nn.LSTM(6, 6), "LSTM"),
    ],
    ids=["cumsum", "fft", "sort", "decision", "decision of a number", "index", "linear", "LSTM"],
)
def test_an_unknown_operation_is_named_and_nothing_is_touched(function, word):
    model = Odd(function)
    with torch.no_grad():
        model.a.weight[:3] = 0
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnknownOperationError, match=word) as error:
        shrink(model, torch.zeros(1, 4))
    assert "\n" not in str(error.value)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


@pytest.mark.parametrize("follow", [shrink, lambda model, example: channel_groups(model, example, density=0.5)])
def test_an_example_that_the_network_does_not_take_is_named(follow):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    words = r"Sequential itself fails with the example of shape \(1, 3, 8, 8\) \(.*channels.*\): give it another"
    with pytest.raises(ValueError, match=words) as error:
        follow(model, torch.zeros(1, 3, 8, 8))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, :6],
        lambda x: x.view(-1, 6),
        lambda x: x.unsqueeze(1).squeeze(),
        lambda x: torch.stack([x, x], 0).mean(0),
        lambda x: F.softmax(x, dim=-1),
        lambda x: F.layer_norm(x, (6,)),
        lambda x: torch.cat([x, x], 0)[: x.shape[0]],
        lambda x: x.expand(x.shape[0], 6),
        lambda x: x * torch.arange(6.0),
        lambda x: torch.cat(x.split(2, dim=1), 1),
        lambda x: torch.maximum(x, -x),
        lambda x: x.t().t(),
        lambda x: x if x.shape[0] > 1 and x.dim() == 2 else -x,
        lambda x: torch.cat(torch.unbind(x.unsqueeze(0), 0), 0),
    ],
)
def test_numbers_in_the_code_keep_their_channels(function):
    """Where the code counts channels they stay; where it does not they may go. Right in every case."""
    model = Odd(function)
    with torch.no_grad():
        model.a.weight[:3] = 0
        model.b.weight[:, 4] = 0
    small = shrink(model, torch.zeros(2, 4), verbose=False)
    assert_same(model, small, (2, 4), tolerance=1e-6)


@pytest.mark.parametrize(
    "layer", [nn.Softshrink(), nn.Threshold(0.1, 3.0), nn.Hardsigmoid(), nn.LogSigmoid(), nn.ReLU6()]
)
def test_what_is_unknown_stays_unknown(layer):
    """Softshrink makes 0 of nan: no unit may be taken for a constant because of that."""
    model = Odd(layer)
    with torch.no_grad():
        model.a.weight[:2] = 0
    small = shrink(model, torch.zeros(2, 4), verbose=False)
    assert small.a.out_features == 4
    assert_same(model, small, (2, 4), tolerance=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2, padding=1),
        nn.AvgPool2d(3, padding=1),
        nn.AdaptiveMaxPool2d(3),
        nn.Upsample(scale_factor=2, mode="bicubic"),
        nn.ZeroPad2d(1),
        nn.ConstantPad2d(1, -2.0),
        nn.ReflectionPad2d(1),
        nn.InstanceNorm2d(6, affine=True),
        nn.GroupNorm(2, 6),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_constants_through_what_looks_at_neighbours(layer, bias):
    model = nn.Sequential(nn.Conv2d(3, 6, 3), layer, nn.Conv2d(6, 2, 1)).eval()
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias[:2] = bias
    assert_same(model, shrink(model, torch.zeros(2, 3, 9, 9), verbose=False), (2, 3, 9, 9), tolerance=1e-6)


def test_whoever_reads_after_an_in_place_operation_reads_its_result():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            hidden = self.a(x)
            F.relu(hidden, inplace=True)
            hidden += 1
            return self.b(hidden)

    model = InPlace()
    with torch.no_grad():
        model.a.weight[:3] = 0
        model.a.bias[:3] = -1
    small = shrink(model, torch.zeros(2, 4), verbose=False)
    assert small.a.out_features == 3
    assert_same(model, small, (2, 4), tolerance=1e-6)


def test_a_shortcut_that_pads_channels():
    class Pads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

        def forward(self, x):
            x = F.relu(self.a(x))
            return self.c(self.b(x) + F.pad(x, (0, 0, 0, 0, 2, 2)))

    model = Pads()
    with torch.no_grad():
        model.c.weight[:, 3:5] = 0
        model.b.weight[:, 1:3] = 0
    small = shrink(model, torch.zeros(1, 3, 5, 5), verbose=False)
    assert_same(model, small, (1, 3, 5, 5), tolerance=1e-6)
    assert small.a.out_channels == 2


def test_a_forward_that_lies_about_its_type_is_found_out():
    class Lies(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.flip(-1)

    model = nn.Sequential(nn.Linear(4, 4), Lies(4, 4), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight[:, :2] = 0
    with pytest.raises(ValueError, match="nothing is changed"):
        shrink(model, torch.zeros(1, 4))


def test_a_decision_that_counts_channels_is_found_out():
    model = Odd(lambda x: x if x.shape[1] > 3 else -x)
    with torch.no_grad():
        model.a.weight[:3] = 0
    with pytest.raises(ValueError, match="nothing is changed"):
        shrink(model, torch.zeros(2, 4))
