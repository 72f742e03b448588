"""shrink computes the same function with fewer channels, to a fixed point, or names what is in its way."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sr2.experiments.models import build
from sr2.export import load, save, shrink
from sr2.export.measure import macs

from .networks import Attention, Block, Mobile, Tokens, assert_same, kill, kill_heads, randomize, unpadded, vgg

IMAGE = torch.zeros(2, 3, 16, 16)
SMALL = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3)), (2, 6)),
    "vgg": (vgg, (2, 3, 16, 16)),
    "unpadded": (unpadded, (2, 3, 16, 16)),
    "mobile": (Mobile, (2, 3, 8, 8)),
    "block": (Block, (2, 4, 16)),
    "gated": (lambda: Block(gated=True), (2, 4, 16)),
    "explicit": (lambda: Block(explicit=True), (2, 4, 16)),
}


def made(name, seed=0, share=0.4):
    """A small network whose filters died, and an input."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    build_one, shape = SMALL[name]
    return kill(randomize(build_one(), generator), share, generator), torch.zeros(shape)


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31), share=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
def test_the_same_function_with_fewer_channels(name, seed, share):
    model, example = made(name, seed, share)
    model, example = model.double(), example.double()
    before = copy.deepcopy(model.state_dict())
    small = shrink(model, example, verbose=False)
    assert_same(model, small, example.shape, seed)
    assert type(small) is type(model)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert small.shrunk.parameters[1] <= small.shrunk.parameters[0]
    again = shrink(small, example, verbose=False)  # a fixed point
    assert again.shrunk.channels[1] == small.shrunk.channels[1]
    assert again.shrunk.parameters[1] == small.shrunk.parameters[1]
    assert again.index_map.to_text() == small.index_map.to_text()  # which speaks of the whole network


@pytest.mark.parametrize(
    ("name", "share"),
    [("resnet18", 0.5), pytest.param("resnet34", 0.3, marks=pytest.mark.torture), ("densenet121", 0.5)],
)
def test_the_papers_networks(name, share):
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    model = kill(randomize(build(name, 10, (3, 32, 32)), generator), share, generator)
    small = shrink(model, torch.zeros(1, 3, 32, 32), verbose=False)
    assert small.shrunk.parameters[1] < 0.8 * small.shrunk.parameters[0]
    assert small.shrunk.macs[1] == macs(small, torch.zeros(1, 3, 32, 32)) < 0.8 * small.shrunk.macs[0]
    assert_same(model, small, (2, 3, 32, 32), tolerance=1e-5)


def test_the_projects_transformer_loses_heads_and_units():
    torch.manual_seed(0)
    model = build("transformer", 40, (16,))
    with torch.no_grad():
        model.blocks[0].out.weight[:, 16:32] = 0  # nobody reads the second head
        model.blocks[1].up.weight[:100] = 0
    tokens = torch.randint(0, 40, (2, 16))
    small = shrink(model, tokens, verbose=False)
    assert [block.heads for block in small.blocks] == [3, 4]
    assert small.blocks[1].down.in_features == 156
    torch.testing.assert_close(small(tokens[:, :9]), model(tokens[:, :9]), atol=1e-5, rtol=1e-5)


def hidden(model):
    return [m.weight.shape[0] for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]


def test_it_finds_everything_in_a_chain():
    """Unit 0 is dead in front, unit 1 is read by nobody; what feeds only them goes too."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[4].weight[:, 1] = 0  # unit 1 of the second layer is not read
        model[2].weight[0] = 0  # unit 0 of the second layer is a constant
        model[2].weight[2:, 3] = 0  # so unit 3 of the first is read by those two only
    small = shrink(model, torch.zeros(1, 3), verbose=False)
    assert hidden(small) == [3, 2, 2]


def batch_norm_behind(padding, bias):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=padding, bias=False)
    )
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0, 0
        model[1].bias[0] = bias
    return model.eval()


@pytest.mark.parametrize(
    ("padding", "bias", "channels", "padded"),
    [(0, 1.0, 3, 0), (1, 1.0, 4, 1), (1, -1.0, 3, 0)],
    ids=["folded", "zero padding keeps it", "zero behind relu"],
)
def test_a_dead_filter_behind_batch_norm_is_a_constant(padding, bias, channels, padded):
    model = batch_norm_behind(padding, bias)
    small = shrink(model, torch.zeros(1, 3, 6, 6), verbose=False)
    assert small[0].out_channels == small[1].num_features == small[3].in_channels == channels
    assert small.shrunk.padded == padded
    assert (small[3].bias is not None) == (padding == 0)
    assert_same(model, small, (2, 3, 6, 6), tolerance=1e-6)


def test_circular_padding_of_a_constant_is_a_constant():
    model = batch_norm_behind(1, 1.0)
    model[3].padding_mode = "circular"
    assert shrink(model, torch.zeros(1, 3, 6, 6), verbose=False)[0].out_channels == 3


def test_a_residual_sum_keeps_what_either_side_needs():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            x = self.a(x)
            return self.c(x + self.b(x))

    model = Residual()
    with torch.no_grad():
        model.b.weight[:3] = 0  # b says nothing there: a does
        model.c.weight[:, 5] = 0  # nobody reads the sum there, but b reads a
        model.c.weight[:, 4] = 0
        model.b.weight[:, 4] = 0  # and here nobody reads anything
    small = shrink(model, torch.zeros(1, 4), verbose=False)
    assert hidden(small) == [5, 5, 2]
    assert_same(model, small, (3, 4), tolerance=1e-6)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("dead", [[0], [1, 3], [0, 1, 2]])
def test_heads_that_nobody_reads_go(explicit, dead):
    model = kill_heads(Block(explicit=explicit), dead)
    small = shrink(model, torch.zeros(2, 4, 16), verbose=False)
    assert small.attention.heads == 4 - len(dead)
    assert small.attention.qkv.out_features == 3 * 4 * (4 - len(dead))
    assert_same(model, small, (3, 4, 16), tolerance=1e-5)


def test_heads_whose_number_is_used_elsewhere_stay():
    class Divides(Attention):
        def forward(self, x):
            batch, length, width = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    model = kill_heads(Divides(16, 4, 4), [0])
    small = shrink(model, torch.zeros(1, 4, 16), verbose=False)
    assert small.heads == 4
    assert_same(model, small, (1, 4, 16), tolerance=1e-5)


def test_torchs_own_transformer_layer():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 16), nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), nn.Linear(16, 2)
    ).eval()
    with torch.no_grad():
        model[1].linear1.weight[:10] = 0
        model[1].linear2.weight[:, 20:] = 0
    small = shrink(model, torch.zeros(2, 4, 5), verbose=False)
    assert small[1].linear1.out_features == 10
    assert_same(model, small, (2, 4, 5), tolerance=1e-5)


def test_tokens_and_a_tied_head():
    torch.manual_seed(0)
    model = kill_heads(Tokens(), [2])
    with torch.no_grad():
        model.blocks[0].up.weight[:20] = 0
        model.blocks[1].down.weight[:, :7] = 0
    tokens = torch.randint(0, 11, (3, 4))
    small = shrink(model, tokens, verbose=False)
    assert small.head.weight is small.token.weight
    assert small.blocks[0].up.out_features == 44
    assert small.blocks[1].up.out_features == 2 * 25
    assert small.blocks[1].attention.heads == 3
    torch.testing.assert_close(small(tokens), model(tokens), atol=1e-5, rtol=1e-5)


def test_every_layer_keeps_a_channel():
    model = vgg()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.zero_()
    small = shrink(model, IMAGE, verbose=False)
    assert min(hidden(small)) >= 1
    assert_same(model, small, IMAGE.shape)


def test_a_layer_that_is_called_twice_is_left_alone():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.again, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.again(F.relu(self.again(F.relu(self.first(x))))))

    model = Twice()
    with torch.no_grad():
        model.again.weight[:4] = 0
    small = shrink(model, torch.zeros(1, 3), verbose=False)
    assert small.again.weight.shape == (8, 8)


def test_training_types_and_layouts_come_back():
    model = vgg().train().bfloat16()
    model[0].weight.requires_grad_(False)
    model[4].to(memory_format=torch.channels_last)
    model[1].eval()  # batch norm that is frozen, in a network that trains
    with torch.no_grad():
        model[0].weight[:4], model[0].bias[:4], model[1].bias[:4] = 0, 0, -1
    small = shrink(model, torch.zeros(1, 3, 16, 16, dtype=torch.bfloat16), verbose=False)
    assert [m.training for m in model.modules()] == [True, True, False, *[True] * (len(model) - 2)]
    assert not any(m.training for m in small.modules())
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}
    assert not small[0].weight.requires_grad
    assert small[4].weight.requires_grad
    assert small[4].weight.is_contiguous(memory_format=torch.channels_last)
    assert small[0].out_channels == 4


def test_it_prints_a_table(capsys):
    model, example = made("unpadded")
    small = shrink(model, example)
    printed = capsys.readouterr().out
    assert printed == f"{small.shrunk}\n"
    for word in ("channels", "parameters", "macs", "milliseconds", "before", "after"):
        assert word in printed


@pytest.mark.parametrize("wrong", [None, [[1.0]], (1, 3, 8, 8), 3])
def test_a_wrong_example_is_one_sentence(wrong):
    with pytest.raises(TypeError, match=r"example must be a tensor.*give one input, as torch.zeros"):
        shrink(vgg(), wrong)


def test_an_example_that_is_wrong_is_named_by_its_kinds_and_not_printed():
    with pytest.raises(TypeError, match="and is a tuple of Tensor, dict: give one input") as error:
        shrink(vgg(), (torch.zeros(64, 64), {}))
    assert "tensor(" not in str(error.value)


@pytest.mark.parametrize("name", SMALL)
def test_saved_with_its_index_map_and_rebuilt_without_pickle(name, tmp_path):
    model, example = made(name, seed=3)
    if name in ("block", "explicit"):
        kill_heads(model, [1])
    small = shrink(model, example, verbose=False)
    save(small, tmp_path / "small")
    fresh = SMALL[name][0]()
    assert load(tmp_path / "small", fresh) is fresh
    fresh.eval()
    x = torch.randn(example.shape)
    assert torch.equal(fresh(x), small(x))
    assert repr(fresh) == repr(small)
    for tensor_name, axes in small.index_map.kept.items():  # and the map leads back
        whole = dict(model.state_dict()).get(tensor_name)
        if whole is not None and tensor_name.endswith("weight"):
            for axis, kept in axes.items():
                whole = whole.index_select(axis, kept.nonzero()[:, 0])
            assert torch.equal(whole, small.state_dict()[tensor_name])
    save(fresh, tmp_path / "again")
    assert torch.equal(load(tmp_path / "again", SMALL[name][0]()).eval()(x), small(x))


def test_the_last_group_may_be_cut_inside(tmp_path):
    def make():
        return nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1))

    model = make()
    with torch.no_grad():
        model[4].weight[:, 1:] = 0  # one filter of the first group is read
    small = shrink(model, torch.zeros(1, 3, 4, 4), verbose=False)
    assert (small[2].groups, small[2].in_channels, small[2].out_channels) == (1, 4, 1)
    save(small, tmp_path / "small")
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(load(tmp_path / "small", make())(x), model(x))


def test_a_shrunk_file_does_not_fit_another_network(tmp_path):
    model, example = made("vgg")
    save(shrink(model, example, verbose=False), tmp_path / "small")
    wrong = nn.Sequential(*list(vgg())[:-1], nn.Linear(24, 7))
    before = copy.deepcopy(wrong.state_dict())
    with pytest.raises(ValueError, match="does not fit the model"):
        load(tmp_path / "small", wrong)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), wrong.state_dict().values(), strict=True))
