"""semi_structured: its checks, here; what it gains, in benchmarks/semi_structured.py on a GPU."""

import sys

import pytest
import torch
from torch import nn

from sr2 import NM
from sr2.export import semi_structured
from sr2.export.semi_structured import LayerConversion, PointwiseConv2d, SemiStructured, why_not

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def two_of_four(layer):
    with torch.no_grad():
        layer.weight.copy_(NM(2, 4).prox(layer.weight.flatten(1), 1.0).view_as(layer.weight))
    return layer


def test_without_cuda_one_sentence():
    with pytest.raises(ValueError, match=r"2:4 needs a CUDA device, and 0\.weight is on cpu"):
        semi_structured(nn.Sequential(nn.Linear(64, 64)))


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (two_of_four(nn.Linear(64, 32)), "float32"),
        (two_of_four(nn.Linear(64, 32)).double(), "float64"),
        (nn.Linear(64, 32).bfloat16(), "not 2:4: row 0"),
        (two_of_four(nn.Linear(64, 48)).bfloat16(), "48 x 64"),
        (two_of_four(nn.Linear(96, 32)).bfloat16(), "32 x 96"),
        (two_of_four(nn.Conv2d(64, 32, 3)).bfloat16(), "1 x 1"),
        (two_of_four(nn.Conv2d(64, 32, 1, padding=1)).bfloat16(), "1 x 1"),
        (two_of_four(nn.Conv2d(128, 32, 1, groups=2)).bfloat16(), "1 x 1"),
    ],
)
def test_what_cannot_be(layer, word):
    assert word in why_not(layer)


@pytest.mark.parametrize("layer", [nn.Linear(64, 32), nn.Conv2d(64, 32, 1, stride=2)])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_what_can_be(layer, kind):
    assert why_not(two_of_four(layer).to(kind)) is None


def test_every_block_is_checked():
    layer = two_of_four(nn.Linear(128, 64)).bfloat16()
    for row, block in ((0, 0), (17, 31), (63, 5)):
        with torch.no_grad():
            before = layer.weight.clone()
            layer.weight[row, 4 * block : 4 * block + 3] = 1
            assert f"row {row} has" in why_not(layer)
            assert f"columns {4 * block} to {4 * block + 3}" in why_not(layer)
            layer.weight.copy_(before)
    assert why_not(layer) is None


def test_the_pointwise_convolution_is_one():
    dense = nn.Conv2d(6, 5, 1, stride=(2, 3))
    x = torch.randn(2, 6, 7, 8)
    ours = PointwiseConv2d(dense, dense.weight.detach().flatten(1))
    torch.testing.assert_close(ours(x), dense(x))


def test_the_table():
    rows = (LayerConversion("a", (64, 64), None, 2.0, 1.0), LayerConversion("b", (64, 63), "64 x 63: …"))
    printed = str(SemiStructured(rows))
    assert "2.00" in printed
    assert "64 x 63" in printed


@pytest.fixture
def rehearsed(monkeypatch):
    """The whole way without a GPU: torch's conversion is left out."""
    module = sys.modules["sr2.export.semi_structured"]
    monkeypatch.setattr(module, "_check_device", lambda model: None)
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", lambda tensor: tensor)
    return module


def a_network():
    torch.manual_seed(0)
    layers = two_of_four(nn.Conv2d(64, 64, 1)), nn.Flatten(), two_of_four(nn.Linear(64, 32)), nn.Linear(32, 7)
    return nn.Sequential(*layers).bfloat16()


@pytest.mark.usefixtures("rehearsed")
def test_a_networkrehearsed(capsys):
    model, x = a_network(), torch.randn(8, 64, 1, 1).bfloat16()
    fast = semi_structured(model)
    assert [row.reason for row in fast.semi_structured.layers][:2] == [None, None]
    assert "7 x 32" in fast.semi_structured.layers[2].reason
    assert isinstance(fast[0], PointwiseConv2d)
    assert isinstance(model[0], nn.Conv2d)
    torch.testing.assert_close(fast(x), model(x), atol=2e-2, rtol=2e-2)
    assert capsys.readouterr().out == f"{fast.semi_structured}\n"


def test_with_an_example_only_faster_layers_are_converted(rehearsed, monkeypatch):
    times = iter([[2.0, 1.0], [1.0, 1.0]])
    monkeypatch.setattr(rehearsed, "milliseconds", lambda *bodies: next(times))
    fast = semi_structured(a_network(), torch.randn(8, 64, 1, 1).bfloat16(), verbose=False)
    assert [row.reason for row in fast.semi_structured.layers][:2] == [None, "slower"]
    assert isinstance(fast[0], PointwiseConv2d)
    assert isinstance(fast[2], nn.Linear)


@pytest.mark.usefixtures("rehearsed")
def test_nothing_to_convert_is_one_sentence():
    with pytest.raises(ValueError, match=r"no layer of Sequential can be 2:4 \(0: float32"):
        semi_structured(nn.Sequential(nn.Linear(64, 64)))
    with pytest.raises(ValueError, match="no linear layer"):
        semi_structured(nn.Sequential(nn.ReLU()))


def test_no_kernel_is_one_sentence(rehearsed, monkeypatch):
    def fails(tensor):
        raise RuntimeError("no such kernel\nand a stack")

    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", fails)
    with pytest.raises(ValueError, match=r"\(no such kernel\): keep the dense model"):
        semi_structured(a_network())


@cuda
def test_on_a_gpu():
    model = nn.Sequential(two_of_four(nn.Linear(1024, 2048)), nn.ReLU(), nn.Linear(2048, 64)).cuda().bfloat16()
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    fast = semi_structured(model, verbose=False)
    assert [row.converted for row in fast.semi_structured.layers] == [True, False]
    torch.testing.assert_close(fast(x), model(x), atol=2e-2, rtol=2e-2)
    with pytest.raises(ValueError, match="float32"):
        semi_structured(model.float())
