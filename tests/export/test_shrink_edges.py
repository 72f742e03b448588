"""Networks as people bring them to `shrink`: not finite, masked, with optional arguments, shrunk before."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from sr2 import channel_groups
from sr2.export import load, save, shrink, sparse_layers


def network(dead: int = 3) -> nn.Sequential:
    """Three of its hidden units see nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight[:dead] = 0
    return model


def assert_same(a, b, *inputs):
    with torch.no_grad():
        torch.testing.assert_close(a(*inputs), b(*inputs))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_one_sentence(number):
    """0 times such a weight is NaN, which was taken for a bias to be added, again and again without end."""
    model = network()
    with torch.no_grad():
        model[0].weight[0] = number
    with pytest.raises(ValueError, match="outputs of Sequential are NaN"):
        shrink(model, torch.zeros(1, 4), verbose=False)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x):
        return self.inner(x).masked_fill(self.mask, -torch.inf)


def test_outputs_may_be_infinite_where_the_network_says_so():
    model = Masked()
    small = shrink(model, torch.zeros(1, 4), verbose=False)
    assert small.inner[0].out_features == 5
    assert_same(model, small, torch.randn(3, 4))


def test_a_network_that_was_shrunk_before_is_saved_with_both_cuts(tmp_path):
    """As one that is shrunk, trained on and shrunk again: the file is loaded into the network of full size."""
    small = shrink(network(3), torch.zeros(1, 4), verbose=False)
    with torch.no_grad():
        small[2].weight[:, -1] = 0
    smaller = shrink(small, torch.zeros(1, 4), verbose=False)
    assert smaller[0].out_features == 4
    save(smaller, tmp_path / "net.safetensors")
    assert_same(load(tmp_path / "net.safetensors", network()), smaller, torch.randn(3, 4))


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x, scale=None, causal: bool = False, *, power: float = 1.0):
        h = self.inner[0](x)
        if scale is not None:
            h = h * scale
        if causal:
            h = h.cumsum(-1)
        return self.inner[2](self.inner[1](h)) * power


@pytest.mark.parametrize("scale", [(), (torch.ones(1),)])
def test_arguments_that_the_example_leaves_out_have_their_defaults(scale):
    model = Optional()
    small = shrink(model, (torch.zeros(1, 4), *scale), verbose=False)
    assert small.inner[0].out_features == 5 or scale  # a channel times what is not known is no constant
    assert_same(model, small, torch.randn(3, 4), *scale)


def test_an_example_may_name_its_inputs():
    model, x, scale = Optional(), torch.zeros(1, 4), torch.ones(1)
    given = {"scale": scale, "x": x}
    assert (
        shrink(model, given, verbose=False).shrunk.parameters
        == shrink(model, (x, scale), verbose=False).shrunk.parameters
    )
    assert sparse_layers(torch.compile(model, backend="eager"), given, verbose=False)(x, scale).shape == (1, 2)
    assert len(channel_groups(model, given, density=0.5)) == 2
    with pytest.raises(
        ValueError, match="has scale, and the forward of Optional takes x, scale, causal: give the first"
    ):
        shrink(model, {"scale": scale})


class Cached(nn.Module):
    """Keeps what it has seen, as a decoder keeps keys and values."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = network(3), None

    def forward(self, x):
        h = self.inner[0](x)
        self.seen = h if self.seen is None else torch.cat([self.seen, h])
        return self.inner[2](self.inner[1](self.seen))


@pytest.mark.parametrize("follow", [shrink, sparse_layers])
def test_what_a_forward_keeps_is_left_in_no_network(follow):
    """In float64 it was read by the next call in float32, an error of torch's own."""
    model, x = Cached(), torch.randn(2, 4)
    sizes = []
    hook = model.register_forward_hook(lambda _, __, output: sizes.append(len(output)))
    small = follow(model, x, verbose=False)
    hook.remove()
    assert max(sizes) <= 6  # it does not grow while it is timed
    assert model.seen is None
    assert small.seen is None
    assert_same(model, small, x)


def test_another_default_device_is_no_hindrance(tmp_path):
    """As of `torch.set_default_device("cuda")`; "meta" is one that has no numbers at all."""
    example, model, fresh = torch.zeros(1, 4), network(), network()
    with torch.device("meta"):
        groups = channel_groups(model, example, density=0.5)
        small = shrink(model, example, verbose=False)
        save(small, tmp_path / "net.safetensors")
        save({"w": torch.eye(64, device="cpu")}, tmp_path / "eye.safetensors")
        loaded, eye = load(tmp_path / "net.safetensors", fresh), load(tmp_path / "eye.safetensors")["w"]
    assert len(groups) == 2
    assert small[0].out_features == 5
    assert_same(model, loaded, torch.randn(3, 4))
    assert torch.equal(eye, torch.eye(64))


def test_sparse_layers_beside_another_default_device():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
    model[0].weight.data[torch.rand(1024, 1024) > 0.005] = 0
    x = torch.randn(1, 1024)
    with torch.device("meta"):
        fast = sparse_layers(model, x, verbose=False, break_even=True)
    torch.testing.assert_close(fast(x), model(x))


def test_a_compiled_network_is_the_one_inside():
    """As a training loop has it: torch.fx does not follow torch.compile's wrapper."""
    compiled = torch.compile(network(), backend="eager")
    small = shrink(compiled, torch.zeros(1, 4), verbose=False)
    assert type(small) is nn.Sequential
    assert small[0].out_features == 5
    groups = channel_groups(compiled, torch.zeros(1, 4), density=0.5)
    assert [name for name, _ in groups[0]["params"]] == ["0.weight", "0.bias"]


def encoder(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(
        nn.Linear(4, 8), nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if norm else None), nn.Linear(8, 2)
    )


@pytest.mark.parametrize("norm", [False, True])
def test_the_hidden_units_of_torchs_own_encoder(norm, tmp_path):
    model = encoder(norm).eval()
    with torch.no_grad():
        model[1].layers[0].linear1.weight[:5] = 0
        model[1].layers[1].linear2.weight[:, :3] = 0
    small = shrink(model, torch.zeros(1, 5, 4), verbose=False)
    assert [layer.linear1.out_features for layer in small[1].layers] == [11, 13]
    assert_same(model, small, torch.randn(3, 5, 4))
    save(small, tmp_path / "net.safetensors")
    assert_same(load(tmp_path / "net.safetensors", encoder(norm).eval()), small, torch.randn(3, 5, 4))


def instances() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3))


def test_a_norm_without_tensors_knows_its_channels(tmp_path):
    """Torch warned at every forward of the shrunk network; warnings are errors here."""
    model, x = instances(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        model[0].weight[:3] = 0
    small = shrink(model, torch.zeros(1, 3, 8, 8), verbose=False)
    assert small[1].num_features == small[0].out_channels == 5
    assert_same(model, small, x)
    save(small, tmp_path / "net.safetensors")
    assert_same(load(tmp_path / "net.safetensors", instances()), small, x)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, x: shrink(model, x, verbose=False),
        lambda model, x: sparse_layers(model, x, verbose=False),
        lambda model, x: channel_groups(model, x, density=0.5),
    ],
    ids=["shrink", "sparse_layers", "channel_groups"],
)
def test_weights_that_torch_prunes_are_one_sentence(use):
    model, x = network(), torch.zeros(1, 4)
    prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"prune\.remove\(layer, 'weight'\)"):
        use(model, x)
    prune.remove(model[0], "weight")
    use(model, x)


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x.sqrt())


def test_a_network_that_takes_no_negative_numbers():
    """It is compared on the example: of random numbers its outputs are NaN."""
    small = shrink(Rooted(), torch.rand(2, 4), verbose=False)
    assert small.inner[0].out_features == 5


def test_weights_that_are_computed_are_named(capsys):
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
    shrink(model, torch.zeros(1, 4))
    assert "the weights of 0 are computed from others, and stay" in capsys.readouterr().out
    shrink(network(), torch.zeros(1, 4))
    assert "computed" not in capsys.readouterr().out
