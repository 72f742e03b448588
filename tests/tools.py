"""What several test files use."""

import functools
import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sr2.experiments.host_reads
from sr2 import SR2
from sr2.optim.moves.choose import choose

HostReads = functools.partial(sr2.experiments.host_reads.HostReads, "cpu")
"""Of the CPU's tensors, which stand for a device's."""


class LargeTensors(TorchDispatchMode):
    """Counts the new tensors of at least n entries."""

    def __init__(self, n):
        super().__init__()
        self.n, self.made, self.seen = n, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):  # the foreach operations return lists
            large = isinstance(made, torch.Tensor) and made.device.type != "meta" and made.numel() >= self.n
            if large and made.data_ptr() not in self.seen:
                self.seen.add(made.data_ptr())
                self.made += 1
        return out


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do; a foreach operation is one, whatever the number of its tensors."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Interrupt(TorchDispatchMode):
    """Ctrl-C before operation number `at` that is run with this mode."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return func(*args, **(kwargs or {}))


# ---- a small network and its closure

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 3


def small_network(dropout=True):
    """Batch norm and dropout: what an evaluation may leave behind."""
    torch.manual_seed(0)
    drop = nn.Dropout(0.4) if dropout else nn.Identity()
    return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), drop, nn.Linear(16, 3))


def algorithm_1(params, regularizer=None, **options):
    """SR2 as Algorithm 1 has it: naming one of its constants brings the others, no metric, no momentum, no average."""
    return SR2(params, regularizer, **{"eta1": 7.5e-4, **options})


def forward_only(model, optimizer=None):
    """The closure that SR2 asks for: it returns the loss and differentiates nothing."""
    return lambda: F.cross_entropy(model(X), Y)


def values(model):
    """A copy of parameters and buffers, by name."""
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def remembered(state, name="search"):
    """What a state of ours keeps as a line in its first group, as the dict that it stands for, in its place."""
    group = state["param_groups"][0]
    if isinstance(group[name], str):
        group[name] = json.loads(group[name])
    return group[name]


def same_bits(one, other):
    """Whether two sequences of tensors are equal to the bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def laid_out(x, layout):
    """The same entries in another layout."""
    if layout == "channels_last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and x.dim() >= 1:
        return torch.stack([x, x], dim=-1)[..., 0]
    if layout == "expanded" and x.dim() >= 1 and x.shape[0] > 0:
        return x[:1].expand_as(x)
    return x


def by_loop(proposals, **options):
    """The oracle of a fast way: group by group, tensor by tensor."""
    move = choose(proposals, {}, foreach=False, compile=False, capturable=False, **options)
    move.use(proposals)
    return move
