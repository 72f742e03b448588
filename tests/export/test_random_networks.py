"""shrink on networks that nobody drew: random graphs of everything that channels meet in."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sr2.export import load, save, shrink

from .networks import kill, randomize


class RandomNetwork(nn.Module):
    """Each step takes one or two of the tensors before it; the last one is read by a linear layer."""

    def __init__(self, seed):
        super().__init__()
        pick = random.Random(seed)
        self.layers, self.steps, widths = nn.ModuleList(), [], [3]
        for _ in range(pick.randint(3, 9)):
            source = pick.randrange(len(widths))
            width, other = widths[source], pick.choice([i for i, w in enumerate(widths) if w == widths[source]])
            options = {
                "conv": lambda w: nn.Conv2d(w, pick.choice([4, 6, 8]), 3, padding=1, bias=pick.random() < 0.5),
                "pointwise": lambda w: nn.Conv2d(w, pick.choice([4, 6, 8]), 1, bias=pick.random() < 0.5),
                "norm": nn.BatchNorm2d,
                "act": lambda w: pick.choice([nn.GELU(), nn.Sigmoid(), nn.PReLU(w), nn.ReLU(), nn.Dropout()]),
                "pool": lambda w: pick.choice([nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)]),
                "depthwise": lambda w: nn.Conv2d(w, w * pick.choice([1, 2]), 3, padding=1, groups=w),
            }
            kind = pick.choice([*options, "conv", "add", "mul", "cat", "squeeze", "groups", "glu", "twice", "shuffle"])
            if kind in ("groups", "glu", "shuffle") and width % 2:
                continue
            if kind in options or kind == "groups":
                layer = nn.Conv2d(width, 8, 3, padding=1, groups=2) if kind == "groups" else options[kind](width)
                self._add("layer", source, layer)
                widths.append(getattr(layer, "out_channels", width))
            elif kind == "squeeze":
                self._add(kind, source, nn.Sequential(nn.Conv2d(width, 3, 1), nn.ReLU(), nn.Conv2d(3, width, 1)))
                widths.append(width)
            elif kind == "twice":
                self._add(kind, source, nn.Conv2d(width, width, 1))
                widths.append(width)
            else:
                self.steps.append((kind, source, other))
                widths.append({"cat": width + widths[other], "glu": width // 2}.get(kind, width))
        self.flat = pick.random() < 0.3
        self.head = nn.Linear(widths[-1] * (25 if self.flat else 1), 3)

    def _add(self, kind, source, layer):
        self.steps.append((kind, source, len(self.layers)))
        self.layers.append(layer)

    def forward(self, x):
        values = [x]
        for kind, source, other in self.steps:
            values.append(getattr(self, f"do_{kind}")(values[source], other, values))
        last = values[-1] if self.flat else F.adaptive_avg_pool2d(values[-1], 1)
        return self.head(last.flatten(1))

    def do_layer(self, x, number, values):
        return self.layers[number](x)

    def do_twice(self, x, number, values):
        return self.layers[number](F.relu(self.layers[number](x)))

    def do_squeeze(self, x, number, values):
        return x * torch.sigmoid(self.layers[number](x.mean((2, 3), keepdim=True)))

    def do_add(self, x, other, values):
        return x + values[other]

    def do_mul(self, x, other, values):
        return x * values[other]

    def do_cat(self, x, other, values):
        return torch.cat([x, values[other]], 1)

    def do_glu(self, x, other, values):
        a, b = x.chunk(2, 1)
        return a * torch.sigmoid(b)

    def do_shuffle(self, x, other, values):
        batch, width, high, wide = x.shape
        return x.view(batch, 2, width // 2, high, wide).transpose(1, 2).reshape(batch, width, high, wide)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_network(share, seed, tmp_path_factory):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = kill(randomize(RandomNetwork(seed), generator), share, generator).double()
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    small = shrink(model, x, verbose=False)  # it would find out itself if the two were not the same
    assert (small(x) - model(x)).abs().max() <= 1e-9 * max(1.0, model(x).abs().max().item())
    again = shrink(small, x, verbose=False)
    assert again.index_map.to_text() == small.index_map.to_text()  # which speaks of the whole network
    path = tmp_path_factory.mktemp("shrunk") / "file"
    save(small, path)
    assert torch.equal(load(path, RandomNetwork(seed).double()).eval()(x), small(x))
