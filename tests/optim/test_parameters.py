"""Which parameters take part in a step: with and without a gradient, frozen, in groups, empty; and which may not."""

import pytest
import torch
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, ProxGEN
from tests.optimizers import OPTIMIZERS, named
from tests.tools import forward_only, small_network, values

every = pytest.mark.parametrize("case", OPTIMIZERS, ids=named)


@every
@pytest.mark.parametrize("foreach", [False, True])
def test_parameters_without_a_gradient_stay(case, foreach):
    used, unused, frozen = (nn.Parameter(torch.full((3,), 0.5)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = case.make([used, unused, frozen], L1(0.5), foreach=foreach)
    for _ in range(3):
        optimizer.step(lambda: (used.square() + frozen * used).sum())
    assert not (used == 0.5).any()
    assert (unused == 0.5).all()
    assert (frozen == 0.5).all()
    assert unused.grad is None


@every
def test_unfreezing(case):
    model = small_network(dropout=False)
    model[0].requires_grad_(False)
    optimizer = case.make(model, L1(1e-3))
    before = values(model)
    optimizer.step(forward_only(model, optimizer))
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[4].weight, before["4.weight"])
    model[0].requires_grad_(True)
    optimizer.step(forward_only(model, optimizer))
    assert not torch.equal(model[0].weight, before["0.weight"])
    model[4].requires_grad_(False)
    before = values(model)
    optimizer.step(forward_only(model, optimizer))
    assert torch.equal(model[4].weight, before["4.weight"])


def test_a_budget_over_the_group_holds_for_tensors_without_a_gradient_too():
    a, b = nn.Parameter(torch.tensor([3.0, 0.0])), nn.Parameter(torch.tensor([2.0, 0.0]))
    optimizer = SR2([a, b], L0Ball(k=2), sigma=2.0, reach=None)
    for _ in range(5):
        optimizer.step(lambda: (a - torch.tensor([3.0, 4.0])).square().sum())
        assert (torch.cat([a, b]) != 0).sum() <= 2
    assert a.tolist() != [3.0, 0.0]


@pytest.mark.parametrize("kind", [SR2, ProxGEN])
@pytest.mark.parametrize("foreach", [False, True])
def test_several_groups_have_their_own_regularizers(kind, foreach):
    a, b, c = (nn.Parameter(torch.tensor([0.05, 1.0])) for _ in range(3))
    groups = [
        {"params": [a], "regularizer": L0(0.2)},
        {"params": [b], "regularizer": None},
        {"params": [c]},
    ]
    optimizer = kind(
        groups, L1(0.1), foreach=foreach, **({"lr": 0.5} if kind is ProxGEN else {"sigma": 2.0, "eta1": 7.5e-4})
    )
    optimizer.step(lambda: 1e-3 * (a + b + c).sum())
    step = 0.5
    assert a.tolist() == pytest.approx([0.0, 1.0 - step * 1e-3])
    assert b.tolist() == pytest.approx([0.05 - step * 1e-3, 1.0 - step * 1e-3])
    assert c.tolist() == pytest.approx([0.0, 1.0 - step * (1e-3 + 0.1)])
    if kind is SR2:  # one decision over all of them
        last = optimizer.last_step
        dR = 0.2 + 0.1 * (0.05 + step * (1e-3 + 0.1))
        assert last.actual == pytest.approx(last.loss - last.trial_loss + dR, rel=1e-5)


@every
def test_add_param_group_mid_run(case):
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    optimizer = case.make([a], L1(0.1))
    f = lambda: a.square().sum() + b.square().sum()  # noqa: E731
    optimizer.step(f)
    assert (b == 1).all()
    optimizer.add_param_group({"params": [b], "regularizer": L1(0.3)})
    optimizer.step(f)
    assert (b < 1).all()
    assert [g["regularizer"] for g in optimizer.param_groups] == [L1(0.1), L1(0.3)]


@every
@pytest.mark.filterwarnings("ignore:there were gradients before this step")
@pytest.mark.parametrize("kind", ["forward", "filled", "there before"])
def test_sparse_gradients_are_an_error(case, kind):
    embedding = nn.Embedding(10, 3, sparse=True)
    optimizer = case.make(embedding, L1(0.1))
    before = embedding.weight.detach().clone()

    def closure():
        loss = embedding(torch.tensor([1, 2])).sum()
        if kind == "filled":
            loss.backward()
        return loss

    if kind == "there before":
        closure().backward()
    with pytest.raises(ValueError, match=r"sparse gradients.*nn.Embedding\(..., sparse=False\)"):
        optimizer.step(closure)
    assert torch.equal(embedding.weight, before)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64], ids=str)
def test_wrong_dtypes_are_an_error(case, dtype):
    with pytest.raises(ValueError, match=r"torch.autocast.*view_as_real"):
        case.make([nn.Parameter(torch.ones(3, dtype=dtype))])
    optimizer = case.make([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=str(dtype)):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, dtype=dtype))]})
    assert len(optimizer.param_groups) == 1


class Adapted(nn.Module):
    """A frozen base that computes in its own dtype, with an index that is a parameter, and what is trained."""

    def __init__(self, dtype):
        super().__init__()
        self.base = nn.Linear(4, 4).to(dtype).requires_grad_(False)
        self.order = nn.Parameter(torch.arange(4), requires_grad=False)
        self.adapter = nn.Linear(4, 4)

    def forward(self, x):
        return self.base(self.adapter(x).to(self.base.weight.dtype)).float()[:, self.order]


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_frozen_may_be_of_any_dtype(case, dtype):
    """The base of an adapter is half or quantized, and the module is to be handed over with all that is frozen."""
    torch.manual_seed(0)
    model, x = Adapted(dtype), torch.randn(8, 4)
    before = model.base.weight.clone(), model.adapter.weight.detach().clone()
    optimizer = case.make(model, L1(1e-3))
    for _ in range(3):
        optimizer.step(lambda: model(x).square().mean())
    assert torch.equal(model.base.weight, before[0])
    assert not torch.equal(model.adapter.weight, before[1])
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(lambda: model(x).square().mean())
    if isinstance(optimizer, SR2):
        assert optimizer._watch.autocast == dtype  # the loss is as coarse as under autocast
    if dtype == torch.float16:
        model.base.requires_grad_(True)
        with pytest.raises(ValueError, match=r"torch.float16.*torch.autocast"):
            optimizer.step(lambda: model(x).square().mean())


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
@pytest.mark.parametrize("capturable", [False, True])
def test_an_empty_parameter(shape, capturable):
    x, empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(shape))
    optimizer = SR2([x, empty], L1(0.01), sigma=5.0, capturable=capturable)
    optimizer.step(lambda: x.square().sum() + empty.sum())
    assert optimizer.last_step.accepted


class Tagged(torch.Tensor):
    """A subclass that changes nothing: torch hands its results on as the subclass, lists of them too."""


@every
def test_a_subclass_of_tensor(case):
    def trained(kind):
        torch.manual_seed(0)
        x = nn.Parameter(torch.randn(4, 3).as_subclass(kind))
        optimizer = case.make([x], L1(0.01))
        for _ in range(3):
            optimizer.step(lambda: (x - 1).square().sum())
        return x

    assert isinstance(trained(Tagged), Tagged)
    assert trained(Tagged).tolist() == trained(torch.Tensor).tolist()


@pytest.fixture(params=[False, True], ids=["data", "swap"])
def converts(request):
    """torch has two ways to convert a network: its tensors get other data, or are swapped with others."""
    torch.__future__.set_swap_module_params_on_conversion(request.param)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def run(case, options, model, steps, other=None):
    """An optimizer that was made for `model` before `other` was called, after so many steps of it."""
    optimizer = case.make(model, L1(1e-3), options)
    for t in range(sum(steps)):
        if t == steps[0] and other is not None:
            other()
        x = torch.linspace(-1.0, 1.0, 40).view(5, 8).to(model.weight.dtype)
        optimizer.step(lambda x=x: (model(x) - 1).square().mean())
    return optimizer


SETS_OF_CASES = [(case, options) for case in OPTIMIZERS for options in case.options]


@pytest.mark.usefixtures("converts")
@pytest.mark.parametrize(("case", "options"), SETS_OF_CASES, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("before", [0, 2])
def test_a_network_may_be_converted_between_steps(case, options, before):
    """All of the state follows: the run goes on in the arithmetic of the parameters."""
    model = nn.Linear(8, 3)
    optimizer = run(case, options, model, (before, 2), model.double)
    assert model.weight.dtype == torch.float64
    kept = {name: value for name, value in optimizer.state[model.weight].items() if torch.is_tensor(value)}
    assert {name: value.dtype for name, value in kept.items()} == dict.fromkeys(kept, torch.float64)
    if before:
        torch.manual_seed(1)
        whole, converted = nn.Linear(8, 3).double(), nn.Linear(8, 3)
        converted.load_state_dict(whole.state_dict())
        run(case, options, whole, (4, 0))
        run(case, options, converted, (2, 2), converted.double)
        assert torch.allclose(whole.weight, converted.weight, rtol=0, atol=1e-4)  # of two steps in float32


@pytest.mark.usefixtures("converts")
@every
def test_a_network_that_is_made_half_is_an_error_at_the_next_step(case):
    for before in (0, 2):
        model = nn.Linear(8, 3)
        with pytest.raises(ValueError, match=r"parameters must be .* and one is torch.float16: keep float32"):
            run(case, "plain", model, (before, 2), model.half)
