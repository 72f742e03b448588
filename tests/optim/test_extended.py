"""Extended arithmetic: R = -c/2 |x|^2 is unbounded below and prox-bounded, with the threshold 1/c on the step."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from sr2 import L1
from sr2.regularizers import Regularizer
from tests.tools import algorithm_1, remembered

C = 3.0


@dataclass(frozen=True)
class NegativeQuadratic(Regularizer):
    """As a user writes it: where 1/step <= c the model is unbounded below, and there is no minimizer to return."""

    c: float
    nothing: float = math.nan
    separable = True

    def terms(self, x):
        return -self.c / 2 * x.double().square()

    def prox_tensor(self, x, step):
        room = torch.as_tensor(1 - self.c * step)
        return torch.where(room > 0, x / room, self.nothing).to(x.dtype)


def problem(curvature=5.0):
    """f = curvature/2 |x - 1|^2, so that F has the minimizer curvature / (curvature - c) where curvature > c."""
    x = nn.Parameter(torch.tensor([1.5, -2.0, 0.3], dtype=torch.float64))
    return x, lambda: curvature / 2 * (x - 1).square().sum()


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
def test_below_the_threshold_a_step_is_rejected_and_above_it_they_work(nothing, capturable, foreach):
    x, f = problem()
    optimizer = algorithm_1([x], NegativeQuadratic(C, nothing), sigma=1e-3, foreach=foreach, capturable=capturable)
    start, sigma = x.detach().clone(), 1e-3
    while sigma <= C:
        optimizer.step(f)
        assert optimizer.last_step.accepted is False
        assert torch.equal(x.detach(), start)
        assert optimizer.sigma == pytest.approx(5.56 * sigma, rel=1e-15)
        sigma = optimizer.sigma
    assert optimizer.counts == {"accepted": 0, "rejected": 5, "null": 0, "broken": 0}
    for _ in range(60):
        before = f().item() - C / 2 * x.detach().square().sum().item()
        optimizer.step(f)
        if optimizer.last_step.accepted:
            after = f().item() - C / 2 * x.detach().square().sum().item()
            assert after <= before + 1e-13
    assert optimizer.counts["accepted"] > 20
    torch.testing.assert_close(x.detach(), torch.full((3,), 5 / (5 - C), dtype=torch.float64), rtol=1e-6, atol=0)


def test_exactly_at_the_threshold():
    """sigma = c: the model is linear, and has no minimizer either. The paper's 1/lambda must be passed, not met."""
    x, f = problem()
    optimizer = algorithm_1([x], NegativeQuadratic(C), sigma=C)
    optimizer.step(f)
    assert optimizer.last_step.accepted is False
    assert optimizer.sigma > C


@pytest.mark.parametrize("capturable", [False, True])
def test_a_momentum_step_below_the_threshold_raises_sigma_too(capturable):
    """A model without a minimizer is rejected, with momentum as without."""
    x, f = problem()
    optimizer = algorithm_1([x], NegativeQuadratic(C), sigma=20.0, momentum=0.9, capturable=capturable)
    for _ in range(3):
        optimizer.step(f)
    assert optimizer.counts["accepted"] == 3
    state = optimizer.state_dict()
    remembered(state)["sigma"] = 1.0
    optimizer.load_state_dict(state)
    optimizer.step(f)
    assert optimizer.last_step.accepted is False
    assert optimizer.sigma == pytest.approx(5.56)


@pytest.mark.parametrize("capturable", [False, True])
def test_the_other_groups_are_put_back_too(capturable):
    x, f = problem()
    y = nn.Parameter(torch.ones(4, dtype=torch.float64))
    groups = [{"params": [x]}, {"params": [y], "regularizer": L1(0.1)}]
    optimizer = algorithm_1(groups, NegativeQuadratic(C), sigma=1.0, capturable=capturable)
    optimizer.step(lambda: f() + y.square().sum())
    assert optimizer.last_step.accepted is False
    assert torch.equal(y.detach(), torch.ones(4, dtype=torch.float64))
    for _ in range(80):
        optimizer.step(lambda: f() + y.square().sum())
    torch.testing.assert_close(x.detach(), torch.full((3,), 5 / (5 - C), dtype=torch.float64), rtol=1e-6, atol=0)
    assert (y == 0).all() or y.abs().max() < 1e-6


def test_the_first_theorem_with_its_threshold():
    """sigma >= max(2 kappa / (1 - eta2), 1 / lambda) and not equal to 1 / lambda: accepted with rho >= eta2."""
    for curvature, eta2 in ((5.0, 0.9), (3.5, 0.1)):
        x, f = problem(curvature)
        sigma = max(curvature / (1 - eta2), C * 1.001)
        optimizer = algorithm_1([x], NegativeQuadratic(C), sigma=sigma, sigma_min=sigma, eta2=eta2)
        for _ in range(10):
            optimizer.step(f)
            assert optimizer.last_step.accepted
            assert optimizer.last_step.rho >= eta2


def test_a_gradient_that_is_not_finite_is_still_no_rejection():
    """The two must not be confused: NaN of the prox raises sigma, NaN of the gradient is an error or counted."""
    x, f = problem()

    def broken():
        return f() + (x - x.detach()).abs().sqrt().sum()  # 0 with an infinite slope

    with pytest.raises(FloatingPointError, match="its gradient is not"):
        algorithm_1([x], NegativeQuadratic(C), sigma=1.0).step(broken)
    optimizer = algorithm_1([x], NegativeQuadratic(C), sigma=1.0, capturable=True)
    optimizer.step(broken)
    assert optimizer.counts == {"accepted": 0, "rejected": 0, "null": 0, "broken": 1}
    assert optimizer.sigma == 1.0
