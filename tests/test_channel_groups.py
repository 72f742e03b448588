"""channel_groups: what is zero together is what `shrink` cuts, and half of a batch-normed CNN goes within a point."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sr2 import L1, SR2, channel_groups, param_groups, recalibrate_
from sr2.experiments.data import load
from sr2.experiments.models import build
from sr2.export import measure, shrink

from .export.networks import Mobile, randomize, vgg

NETWORKS = {
    "cnn": (lambda: build("cnn", 10, (1, 8, 8)), (1, 1, 8, 8)),
    "resnet18": (lambda: build("resnet18", 10, (3, 32, 32)), (1, 3, 16, 16)),
    "densenet121": (lambda: build("densenet121", 10, (3, 32, 32)), (1, 3, 32, 32)),
    "vgg": (vgg, (1, 3, 16, 16)),
    "mobile": (Mobile, (1, 3, 8, 8)),
    "mlp": (lambda: build("mlp", 10, (1, 8, 8)), (1, 1, 8, 8)),
}


@pytest.fixture(autouse=True)
def _measure_once(monkeypatch):
    monkeypatch.setattr(measure, "REPEATS", 1)
    monkeypatch.setattr(measure, "LEAST_SECONDS", 0.0)


def nonzero(group):
    return [int(part.sum()) for part in group["regularizer"].groups.nonzero(group["params"])]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_channel_of_zeros_is_one_that_shrink_cuts(name):
    """After the prox to 30 %, what is left is what is not zero, and one channel of each layer that is empty."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    randomize(model, torch.Generator().manual_seed(0))
    group = next(g for g in SR2(channel_groups(model, torch.zeros(shape), 0.3)).param_groups if g["regularizer"])
    before = nonzero(group)
    with torch.no_grad():
        for p, z in zip(group["params"], group["regularizer"].prox(group["params"], 1.0), strict=True):
            p.copy_(z)
    assert sum(nonzero(group)) == round(0.3 * sum(before))
    small = shrink(model, torch.zeros(shape), verbose=False)
    assert small.shrunk.error < 1e-9
    again = next(g for g in SR2(channel_groups(small, torch.zeros(shape), 0.3)).param_groups if g["regularizer"])
    assert sum(nonzero(again)) == sum(nonzero(group))
    assert sum(again["regularizer"].groups.sizes) == sum(nonzero(group)) + nonzero(group).count(0)


def test_the_stream_of_a_stage_is_one_set_of_channels():
    """64 of the stem and of layer1's outputs are the same; the inner ones of each block are their own."""
    groups = channel_groups(build("resnet18", 10, (3, 32, 32)), torch.zeros(1, 3, 16, 16), 0.5)
    sizes = groups[0]["regularizer"].groups.sizes
    assert sorted(sizes) == sorted([64, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512])
    assert [name for name, _ in groups[1]["params"]] == ["fc.weight", "fc.bias"]


def test_rest_and_errors():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    groups = channel_groups(model, torch.zeros(1, 4), 0.5, rest=L1(0.1))
    assert [g["regularizer"] for g in groups][1] == L1(0.1)
    with pytest.raises(ValueError, match="Linear has no channel that could go"):
        channel_groups(nn.Linear(3, 2), torch.zeros(1, 3), 0.5)
    model[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="leave none out and none frozen"):
        SR2(groups).step(lambda: model(torch.ones(1, 4)).sum())


def normed(norm, width=16):
    layers = [nn.Conv2d(1, width, 3, padding=1), norm(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * width, 2), nn.LogSoftmax(1))


def test_a_norm_whose_channels_share_statistics_is_named():
    """The only channels of a plain CNN meet in it, so none may go; of more layers the share that may is told."""
    example = torch.zeros(1, 1, 8, 8)
    with pytest.raises(ValueError, match=r"no channel that could go: channels of GroupNorm share .*: use BatchNorm"):
        channel_groups(normed(lambda n: nn.GroupNorm(4, n)), example, 0.5)
    assert len(channel_groups(normed(nn.BatchNorm2d), example, 0.5)) == 2  # and nothing is told

    mixed = nn.Sequential(*normed(lambda n: nn.GroupNorm(4, n))[:3], nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    words = r"density=0.5 is of 8 of the 24 channels of Sequential \(33 %\): channels of GroupNorm share statistics"
    with pytest.warns(UserWarning, match=words):
        channel_groups(mixed, example, 0.5)


def test_channels_that_code_counts_are_told_without_a_norm():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.c(self.b(self.a(x)).view(-1, 6))

    with pytest.warns(UserWarning, match=r"6 of the 12 channels of Counts \(50 %\): the others are needed"):
        channel_groups(Counts(), torch.zeros(1, 4), 0.5)


def digits(density, steps=300):
    """A batch-normed CNN after so many steps of 64, and its score on the test images."""
    torch.manual_seed(0)
    data, model = load("digits"), build("cnn", 10, (1, 8, 8))
    x, x_test = data.train_inputs.float() / 16, data.test_inputs.float() / 16
    groups = param_groups(model, [("*", None)])
    if density < 1:
        groups = channel_groups(model, x[:1], density)
    optimizer = SR2(groups, steps=steps)
    for _ in range(steps):
        b = torch.randint(len(x), (64,))
        optimizer.step(lambda b=b: cross_entropy(model(x[b]), data.train_targets[b]))
    small = shrink(model, x[:1], verbose=False)
    with torch.no_grad():
        return small, float((small(x_test).argmax(1) == data.test_targets).double().mean())


def test_half_of_the_filters_of_a_batch_normed_cnn_go_within_a_point():
    (_, dense), (small, score) = digits(1.0), digits(0.5)
    filters = [len(m.weight) for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert sum(filters) == (16 + 32 + 64) // 2
    assert small.shrunk.padded == 0
    assert small.shrunk.parameters[1] < small.shrunk.parameters[0] / 3
    assert score > 0.95
    assert score >= dense - 0.01


def test_batch_norm_of_the_projects_networks_is_recalibrated():
    torch.manual_seed(0)
    model, x = build("cnn", 10, (1, 8, 8)), torch.randn(256, 1, 8, 8) + 1
    recalibrate_(model, [x])
    outputs = [model.eval()(x), model.train()(x)]
    assert torch.allclose(*outputs, atol=0.05)
    assert float(model[1].running_mean.abs().min()) > 0
