"""Both evaluations are of one function of x, whatever the module keeps in its buffers and does without gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, certificate

PAPER = SR2.paper_defaults()
torch.manual_seed(0)
X, Y = torch.randn(64, 10), torch.randint(3, (64,))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("spectral_norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_a_forward_that_reads_the_buffers_it_updates(spectral_norm, capturable):
    """Spectral norm takes a power iteration a forward: both evaluations start from the same vector."""
    torch.manual_seed(1)
    model = nn.Sequential(spectral_norm(nn.Linear(10, 32)), nn.ReLU(), nn.Linear(32, 3))
    optimizer = SR2(model, L1(1e-4), sigma=1e6, sigma_min=1e-3, capturable=capturable)
    optimizer.step(lambda: F.cross_entropy(model(X), Y))
    assert optimizer.last_step.trial_loss == pytest.approx(optimizer.last_step.loss, abs=1e-5)  # s is that short
    optimizer = SR2(model, L1(1e-4), sigma=5.0, capturable=capturable)
    for _ in range(100):
        loss = optimizer.step(lambda: F.cross_entropy(model(X), Y))
    assert optimizer.counts["accepted"] > 90
    assert float(loss) < 0.5


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("capturable", [False, True])
def test_an_encoder_in_evaluation_mode_is_the_same_function_twice(capturable):
    """Without gradients nn.TransformerEncoder would leave the padded places out."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    model = nn.ModuleList([nn.Linear(10, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)]).eval()
    x, padded = torch.randn(64, 6, 10), torch.zeros(64, 6, dtype=torch.bool)
    padded[1:, 3:] = True
    optimizer = SR2(model, L1(1e-4), sigma=1e8, sigma_min=1e-3, capturable=capturable)
    optimizer.step(lambda: F.cross_entropy(model[2](model[1](model[0](x), src_key_padding_mask=padded).mean(1)), Y))
    assert optimizer.last_step.trial_loss == pytest.approx(optimizer.last_step.loss, abs=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_frozen_encoder_is_the_same_function_twice():
    """Nothing of it requires a gradient, so it could take its short cut in the first evaluation too."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    encoder, head = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False), nn.Linear(16, 3)
    x, padded = torch.randn(64, 6, 16), torch.zeros(64, 6, dtype=torch.bool)
    padded[1:, 3:] = True
    optimizer = SR2(head, L1(1e-4), sigma=1e6, sigma_min=1e-3)
    optimizer.step(lambda: F.cross_entropy(head(encoder(x, src_key_padding_mask=padded).mean(1)), Y))
    assert optimizer.last_step.trial_loss == pytest.approx(optimizer.last_step.loss, abs=1e-5)


class Observer(nn.Module):
    """Resizes its buffers in its first forward, as quantization's do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 3)
        self.register_buffer("least", torch.zeros(0))

    def forward(self, x):
        y = self.linear(x)
        if self.least.numel() == 0:
            self.least.resize_(3).fill_(9.0)
        self.least.copy_(torch.minimum(self.least, y.detach().amin(0)))
        return y


class FirstBatch(nn.Module):
    """Sets a parameter from the first batch that it sees, as ActNorm does."""

    def __init__(self):
        super().__init__()
        self.linear, self.shift = nn.Linear(10, 3), nn.Parameter(torch.zeros(3))
        self.register_buffer("done", torch.tensor(False))

    def forward(self, x):
        y = self.linear(x)
        if not self.done:
            with torch.no_grad():
                self.shift.copy_(-y.mean(0))
            self.first_shift = self.shift.detach().clone()
            self.done.fill_(True)
        return y + self.shift


@pytest.mark.parametrize("sigma", ["auto", 50.0])
@pytest.mark.parametrize("kind", [Observer, FirstBatch])
def test_a_first_forward_that_is_special(kind, sigma):
    torch.manual_seed(1)
    model = kind()
    optimizer = SR2(model, sigma=sigma)
    optimizer.step(lambda: F.cross_entropy(model(X), Y))
    if kind is FirstBatch:
        assert not torch.equal(model.shift, model.first_shift)  # which the step has moved
    for _ in range(4):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
    assert optimizer.counts["accepted"] == 5


class Counts(nn.Module):
    """Makes its buffer at the first forward, and has one that is expanded."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 3)
        self.register_buffer("n", None)
        self.register_buffer("mask", torch.ones(1).expand(3))

    def forward(self, x):
        self.n = torch.ones(()) if self.n is None else self.n + 1
        return self.linear(x) * self.mask


@pytest.mark.parametrize("capturable", [False, True])
def test_buffers_that_are_made_late_or_expanded(capturable):
    model = Counts()
    optimizer = SR2(model, L1(1e-4), sigma=50.0, capturable=capturable)
    for _ in range(5):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
    assert model.n == 5
    assert model.mask.stride() == (0,)
    assert optimizer.counts["accepted"] == 5


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("capturable", [False, True])
def test_buffers_of_every_layout_stay(capturable):
    """CSR and nested tensors have no strides, and a conjugate is a view with a flag, as of the kernel of an FFT."""
    model = nn.Linear(10, 3)
    buffers = {
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
        "conjugate": torch.fft.rfft(torch.arange(4.0)).conj(),
        "complex": torch.fft.rfft(torch.arange(4.0)),
    }
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    optimizer = SR2(model, L1(1e-4), sigma=5.0, capturable=capturable)
    for _ in range(3):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
    with optimizer.averaged():
        pass
    assert all(getattr(model, name) is buffer for name, buffer in buffers.items())
    assert torch.equal(model.conjugate, model.complex.conj())


def test_a_broken_first_step_takes_a_late_buffer_back():
    model = Counts()
    with pytest.raises(FloatingPointError):
        SR2(model, L1(1e-4), sigma=5.0).step(lambda: F.cross_entropy(model(X), Y) * math.nan)
    assert model.n is None


def test_a_rebound_buffer_of_a_broken_capturable_step_is_the_old_one():
    model = Counts()
    optimizer = SR2(model, L1(1e-4), sigma=5.0, capturable=True)
    optimizer.step(lambda: F.cross_entropy(model(X), Y))
    optimizer.step(lambda: F.cross_entropy(model(X), Y) * math.nan)
    assert optimizer.counts["broken"] == 1
    assert model.n == 1
    assert model._buffers["n"] is model.n


def test_after_a_rejection_inside_autocast_nothing_is_of_the_trial_point():
    """autocast keeps cast copies of the weights: those of x + s must not outlive a rejection."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = SR2(model, L1(1e-4), sigma=1e-4, gamma1=1.01, autocast=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [float(optimizer.step(lambda: F.cross_entropy(model(X), Y))) for _ in range(6)]
    assert optimizer.counts["rejected"] == 6
    assert len(set(losses)) == 1


def test_a_float64_loss_of_float32_parameters_is_known_to_float32():
    """x + s is rounded to float32, and so is what a step gains, whatever the loss is summed in."""
    torch.manual_seed(0)
    A, b, w = torch.randn(64, 8), torch.randn(64), nn.Parameter(torch.zeros(8))
    optimizer = SR2([w], sigma=2.0)
    for _ in range(400):
        optimizer.step(lambda: (A @ w - b).double().square().mean())
    assert optimizer.sigma < 100
    assert optimizer.counts["null"] == 0


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, PAPER, {"sigma": 5.0, "cooldown": (2, 5)}, {"metric": "rmsprop"}],
    ids=["", "paper", "cooldown", "metric"],
)
def test_the_default_device_does_not_matter(options, capturable):
    """torch.set_default_device("cuda") is common; what is made on "meta" has no numbers, and would tell."""
    ends = []
    for device in (None, "meta"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
        torch.set_default_device(device)
        try:
            optimizer = SR2(model, L1(1e-3), capturable=capturable, **options)
            for _ in range(6):
                optimizer.step(lambda model=model: F.cross_entropy(model(X), Y))
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step(lambda model=model: F.cross_entropy(model(X), Y))
            bound = certificate(model, [(X, Y)], optimizer).bound if options is PAPER else None
        finally:
            torch.set_default_device(None)
        ends.append((optimizer.last_step, optimizer.stationarity, bound))
    assert ends[0] == ends[1]
