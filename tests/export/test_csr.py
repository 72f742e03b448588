"""sparse_layers: the same function, against torch's dense layers and scipy.sparse, and never slower by choice."""

import copy

import pytest
import scipy.signal
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sr2 import prune_, sparsity
from sr2.experiments.models import build
from sr2.export import csr, load, save, sparse_layers
from sr2.export.csr import SparseConv2d, SparseLinear, measure_layers

from .networks import vgg


def thinned(layer, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight[torch.rand(layer.weight.shape, generator=generator) >= density] = 0
    return layer


@pytest.fixture
def _csr_wins(monkeypatch):
    """As if every measurement were for CSR."""
    monkeypatch.setattr(csr, "milliseconds", lambda *bodies: [float(len(bodies) - i) for i in range(len(bodies))])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, of its own convolution
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_convolutions_of_every_kind(data):
    pick = lambda *options: data.draw(st.sampled_from(options))  # noqa: E731
    inputs, outputs, batch = pick(1, 3), pick(1, 4), pick(1, 3)
    kernel, stride, dilation = (pick(1, 2, 3), pick(1, 3)), (pick(1, 2, 3), pick(1, 2)), (pick(1, 2), pick(1, 3))
    mode = pick("zeros", "zeros", "circular", "reflect")
    padding = pick((0, 0), (1, 2), (2, 1), "same") if stride == (1, 1) else pick((0, 0), (1, 2))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": mode}
    dense = nn.Conv2d(inputs, outputs, kernel, bias=pick(True, False), **options).double()
    thinned(dense, pick(0.0, 0.1, 0.5, 1.0))
    x = torch.randn(batch, inputs, pick(8, 11), pick(9, 12), dtype=torch.float64)
    sparse = SparseConv2d(dense)
    torch.testing.assert_close(sparse(x), dense(x).detach(), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(sparse(x[0]), dense(x[0]).detach(), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(sparse(x.contiguous(memory_format=torch.channels_last)), sparse(x))


@pytest.mark.usefixtures("_csr_wins")
def test_what_sparse_layers_do_not_store_is_counted_as_zero():
    """Layer by layer as in the dense network, with a threshold too; and prune_ reaches what they store."""
    torch.manual_seed(0)
    convolution = thinned(nn.Conv2d(3, 4, 3, padding=1), 0.1)
    convolution.weight.data[:, 0] = 0  # taps that nothing reads are not even in its matrix
    model = nn.Sequential(convolution, nn.BatchNorm2d(4), nn.Flatten(), thinned(nn.Linear(64, 8, bias=False), 0.2))
    fast = sparse_layers(model, torch.randn(1, 3, 4, 4), verbose=False)
    assert [type(layer) for layer in fast][::3] == [SparseConv2d, SparseLinear]
    assert sparsity(fast) == sparsity(model)
    assert sparsity(fast, 0.05) == sparsity(model, 0.05)
    assert sparsity(fast[3]).tensors[0].name == "weight"
    assert sparsity(fast.state_dict()).zeros == sparsity(model.state_dict()).zeros
    assert prune_(fast, 0.05) == prune_(model, 0.05)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(fast(x), model.eval()(x))


def test_a_batch_in_parts(monkeypatch):
    dense = thinned(nn.Conv2d(4, 5, 3, padding=1), 0.3)
    x = torch.randn(7, 4, 6, 6)
    whole = SparseConv2d(dense)(x)
    monkeypatch.setattr(csr, "CHUNK", 2 * 4 * 9 * 36)
    torch.testing.assert_close(SparseConv2d(dense)(x), whole)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_linear_against_scipy(shape):
    dense = thinned(nn.Linear(5, 7).double(), 0.3)
    x = torch.randn(shape, dtype=torch.float64)
    right = scipy.sparse.csr_array(dense.weight.detach().numpy()) @ x.reshape(-1, 5).T.numpy()
    right = torch.from_numpy(right).T.reshape(*shape[:-1], 7) + dense.bias.detach()
    torch.testing.assert_close(SparseLinear(dense)(x), right)


def test_convolution_against_scipy():
    dense = thinned(nn.Conv2d(1, 1, 3, bias=False).double(), 0.5)
    x = torch.randn(1, 1, 9, 8, dtype=torch.float64)
    right = scipy.signal.correlate2d(x[0, 0].numpy(), dense.weight[0, 0].detach().numpy(), mode="valid")
    torch.testing.assert_close(SparseConv2d(dense)(x)[0, 0], torch.from_numpy(right))


def test_csr_is_scipys():
    weight = thinned(nn.Linear(40, 30), 0.1).weight.detach()
    ours, scipys = csr._csr(weight), scipy.sparse.csr_array(weight.numpy())
    assert ours.crow_indices().tolist() == scipys.indptr.tolist()
    assert ours.col_indices().tolist() == scipys.indices.tolist()
    assert ours.values().tolist() == scipys.data.tolist()


@pytest.mark.usefixtures("_csr_wins")
def test_a_whole_network():
    torch.manual_seed(0)
    model = build("resnet18", 10, (3, 32, 32)).eval()
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            thinned(module, 0.1)
        elif isinstance(module, nn.BatchNorm2d):
            module.running_var.fill_(0.02)  # so that the signal reaches the output
    x = torch.randn(2, 3, 32, 32)
    fast = sparse_layers(model, x, verbose=False)
    swapped = [m for m in fast.modules() if isinstance(m, (SparseConv2d, SparseLinear))]
    assert len(swapped) == 21
    assert not any(isinstance(m, SparseConv2d) for m in model.modules())
    with torch.no_grad():
        y, right = fast(x), model(x)
    assert right.std() > 0.1
    torch.testing.assert_close(y, right, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("_csr_wins")
def test_layers_that_cannot_be_are_left(tmp_path):
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Flatten())
    thinned(model[0], 0.1)
    thinned(model[1], 0.1)
    fast = sparse_layers(model, torch.randn(1, 4, 5, 5), verbose=False)
    assert [type(m) for m in fast][:3] == [nn.Conv2d, SparseConv2d, nn.Conv2d]


def test_a_loser_is_not_swapped(monkeypatch):
    monkeypatch.setattr(csr, "milliseconds", lambda *bodies: [1.0, 0.95])  # within the noise
    model = vgg()
    thinned(model[0], 0.1)
    fast = sparse_layers(model, torch.randn(1, 3, 16, 16), verbose=False)
    assert isinstance(fast[0], nn.Conv2d)
    assert not fast.sparse_layers.layers[0].swapped


def test_a_network_that_does_not_win_is_not_changed(monkeypatch):
    times = iter([[1.0, 0.5], [1.0, 1.1]])  # the layer wins and the whole does not
    monkeypatch.setattr(csr, "milliseconds", lambda *bodies: next(times))
    model = vgg()
    thinned(model[0], 0.1)
    fast = sparse_layers(model, torch.randn(1, 3, 16, 16), verbose=False)
    assert isinstance(fast[0], nn.Conv2d)
    assert fast.sparse_layers.milliseconds == (1.0, 1.0)
    assert not any(row.swapped for row in fast.sparse_layers.layers)


def test_it_really_measures_and_prints(capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 4))
    thinned(model[0], 0.01)
    for _ in range(5):  # 16 times fewer bytes to read: on a machine that is busy with others, noise may hide it once
        fast = sparse_layers(model, torch.randn(1, 2048))
        printed = capsys.readouterr().out
        if isinstance(fast[0], SparseLinear):
            break
    assert isinstance(fast[0], SparseLinear)
    assert isinstance(fast[2], nn.Linear)
    assert "network" in printed
    assert "99.0%" in printed


@pytest.mark.parametrize(
    ("dense", "break_even", "printed"),
    [(0.5, 0.6, "60."), (0.105, 0.995, "99."), (0.05, 1.0, "never"), (2.0, 0.0, "0.0%")],
)
def test_the_break_even(monkeypatch, dense, break_even, printed):
    """On a machine whose CSR takes 0.1 ms and 1 ms times the share of nonzeros, and which nothing else keeps busy."""
    times = lambda layer, x, sparse: [dense, 0.1 + sparse.weight.values().numel() / layer.weight.numel()]  # noqa: E731
    monkeypatch.setattr(csr, "_times", times)
    model = nn.Sequential(nn.Linear(1024, 1024))
    (row,) = measure_layers(model, torch.randn(1, 1024), break_even=True)
    assert (row.zeros, row.dense, row.sparse) == (0, dense, 1.1)
    assert row.swapped == (dense == 2.0)
    assert row.break_even == pytest.approx(break_even, abs=1e-3)
    shown = str(csr.SparseLayers((row,), (1.0, 1.0))).splitlines()
    assert "break-even" in shown[0]
    assert printed in shown[1]


def test_the_break_even_is_timed():
    (row,) = measure_layers(nn.Sequential(nn.Linear(64, 64)), torch.randn(1, 64), break_even=True)
    assert min(row.dense, row.sparse) > 0
    assert 0 <= row.break_even <= 1


@pytest.mark.usefixtures("_csr_wins")
def test_saved_as_the_dense_network_that_it_is(tmp_path):
    def make():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))

    model = make()
    thinned(model[0], 0.2)
    thinned(model[2], 0.2)
    fast = sparse_layers(model, torch.randn(1, 3, 4, 4), verbose=False)
    assert isinstance(fast[0], SparseConv2d)
    save(fast, tmp_path / "w")
    back = load(tmp_path / "w", make())
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True))


def test_another_device_is_one_sentence():
    with pytest.raises(ValueError, match="sparse_layers is for the CPU, and weight is on meta"):
        sparse_layers(nn.Linear(3, 3, device="meta"), torch.zeros(1, 3))


@pytest.mark.parametrize("layer", [SparseLinear(nn.Linear(4, 3)), SparseConv2d(nn.Conv2d(4, 3, 3))], ids=["l", "c"])
def test_a_copy(layer):
    """torch has no copy.deepcopy of a CSR tensor."""
    model = nn.Sequential(layer)
    made, x = copy.deepcopy(model), torch.randn(2, 4) if isinstance(layer, SparseLinear) else torch.randn(2, 4, 5, 5)
    assert torch.equal(made(x), model(x))
    assert made[0].weight.values().data_ptr() != layer.weight.values().data_ptr()


def test_an_input_of_other_channels_is_an_error():
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        SparseConv2d(nn.Conv2d(4, 3, 3))(torch.randn(2, 5, 5, 5))


def test_torchs_own_encoder_layer_keeps_its_weights(monkeypatch):
    """In evaluation mode it hands them to one function, which takes no CSR."""
    monkeypatch.setattr(csr, "milliseconds", lambda *_: [2.0, 1.0])
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    for p in model.parameters():
        p.data[torch.rand_like(p) < 0.9] = 0
    x = torch.randn(1, 4, 8)
    fast = sparse_layers(model, x, verbose=False)
    assert isinstance(fast[0], SparseLinear)
    assert not isinstance(fast[1].linear1, SparseLinear)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.usefixtures("_csr_wins")
def test_weights_that_are_computed_are_settled():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(32, 16)), nn.ReLU(), nn.Linear(16, 2)
    ).eval()
    with torch.no_grad():
        model[0].parametrizations.weight.original[:, 4:] = 0.0
    x = torch.randn(3, 32)
    fast = sparse_layers(model, x, verbose=False)
    assert isinstance(fast[0], SparseLinear)
    torch.testing.assert_close(fast(x), model(x))
