"""to_onnx: what onnxruntime computes is what torch computes; smaller because shrunk."""

import subprocess
import sys
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from sr2.export import to_onnx
from sr2.export.onnx import _compare, fold_batch_norm

from .networks import Cumulative, Mobile, kill, randomize, unpadded


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """One export, looked at from several sides: the exporter is slow."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = kill(randomize(unpadded(), generator), 0.4, generator)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return model, path, to_onnx(model, torch.zeros(1, 3, 16, 16), path)


@pytest.mark.parametrize("batch", [1, 5])
def test_onnxruntime_computes_the_same(exported, batch):
    model, path, _ = exported
    x = torch.randn(batch, 3, 16, 16)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), model(x).detach(), atol=1e-5, rtol=1e-4)


def test_shrunk_and_folded(exported):
    model, path, report = exported
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    assert "BatchNormalization" not in {node.op_type for node in proto.graph.node}
    entries = sum(torch.tensor(item.dims).prod().item() for item in proto.graph.initializer)
    assert entries < 0.6 * sum(p.numel() for p in model.parameters())
    assert report.shrunk
    assert report.error < 1e-5
    assert report.bytes == path.stat().st_size


def test_the_file_does_not_say_where_it_was_made(exported):
    _, path, _ = exported
    assert b"File " not in path.read_bytes()
    assert not any(node.metadata_props for node in onnx.load(path).graph.node)


class Rows(nn.Module):
    """A table whose first column is a category, as a number."""

    def __init__(self):
        super().__init__()
        self.of, self.out = nn.Embedding(5, 3), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(torch.cat([self.of(x[:, 0].long()), x[:, 1:].sqrt()], 1))


def test_a_network_that_takes_no_random_numbers_is_compared_on_the_example(tmp_path):
    model, path = Rows(), tmp_path / "model.onnx"
    assert to_onnx(model, torch.tensor([[3.0, 0.5, 2.0]]), path).error < 1e-5
    x = torch.tensor([[0.0, 1.0, 2.0], [4.0, 3.0, 1.0]])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), model(x).detach(), atol=1e-5, rtol=1e-4)


def test_computed_weights_are_settled_and_shrunk(tmp_path):
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
    with torch.no_grad():
        layer.parametrizations.weight.original[:5] = 0.0
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 6)
    before = model(x)
    report = to_onnx(model, torch.zeros(1, 6), tmp_path / "model.onnx")
    assert report.parameters == 3 * 6 + 3 + 2 * 3 + 2
    assert nn.utils.parametrize.is_parametrized(model[0])
    assert torch.equal(model(x), before)  # the model is not changed


def test_a_network_that_cannot_be_shrunk_is_exported_whole(tmp_path):
    model = Cumulative()
    report = to_onnx(model, torch.zeros(2, 4), tmp_path / "model.onnx")
    assert not report.shrunk
    assert report.error < 1e-5


@pytest.mark.parametrize("make", [unpadded, Mobile])
def test_batch_norm_is_folded(make):
    model = randomize(make(), torch.Generator().manual_seed(0)).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    folded = fold_batch_norm(model, x)
    torch.testing.assert_close(folded(x), model(x))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())


def test_batch_norm_behind_something_shared_stays():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            x = self.conv(x)
            return self.norm(x) + x

    model = randomize(Shared(), torch.Generator().manual_seed(0))
    assert isinstance(fold_batch_norm(model, torch.zeros(1, 3, 2, 2)).norm, nn.BatchNorm2d)


@pytest.mark.parametrize(
    ("norm", "x"),
    [
        (nn.BatchNorm1d(6, affine=False), torch.randn(4, 8)),
        (nn.BatchNorm1d(5), torch.randn(4, 5, 8)),  # over the steps of a sequence, and not over the layer's outputs
        (nn.BatchNorm1d(6), torch.randn(4, 6, 8)),
    ],
    ids=["no weight", "sequence", "sequence as long as the layer is wide"],
)
def test_batch_norm_behind_a_linear_layer_that_is_no_part_of_it_stays(norm, x):
    norm.running_mean.normal_(generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(8, 6), norm).eval()
    folded = fold_batch_norm(model, x)
    torch.testing.assert_close(folded(x), model(x))
    assert isinstance(folded[1], nn.BatchNorm1d)


def test_what_onnxruntime_does_not_run_is_one_sentence(tmp_path):
    model = nn.Linear(4, 2).bfloat16()
    with pytest.raises(ValueError, match=r"onnxruntime does not run .*bfloat16.*model.float\(\)"):
        to_onnx(model, torch.zeros(1, 4, dtype=torch.bfloat16), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_one_sentence():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import torch; from sr2.export import to_onnx\n"
        "try: to_onnx(torch.nn.Linear(2, 2), torch.zeros(1, 2), 'never.onnx')\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "to_onnx needs onnxruntime: pip install 'sr2[onnx]'"


class Session:
    """An onnxruntime that errs by so much, in batches of so many."""

    def __init__(self, error, batch):
        self.error, self.batch = error, batch

    def InferenceSession(self, data, providers):  # noqa: N802
        return self

    def get_inputs(self):
        return [SimpleNamespace(name="x")]

    def run(self, outputs, inputs):
        x = inputs["x"]
        return [x * (1 + self.error * (len(x) == self.batch))]


@pytest.mark.parametrize("batch", [2, 6])
def test_what_differs_from_torch_in_any_batch_is_not_written(batch):
    found = _compare(Session(5e-5, batch), b"", nn.Identity(), (torch.zeros(2, 4),))
    assert found == pytest.approx(5e-5, rel=1e-2)
    with pytest.raises(ValueError, match="onnxruntime and torch differ by"):
        _compare(Session(2e-4, batch), b"", nn.Identity(), (torch.zeros(2, 4),))


class Single(nn.Linear):
    def forward(self, x):
        return super().forward(x.float())


@pytest.mark.parametrize("compiled", [False, True])
def test_what_shrink_cannot_run_in_float64_is_exported_whole(tmp_path, compiled):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Single(8, 2))
    given = torch.compile(model, backend="eager") if compiled else model
    assert not to_onnx(given, torch.zeros(1, 4), tmp_path / "net.onnx").shrunk
