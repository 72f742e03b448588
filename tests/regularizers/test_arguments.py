"""Wrong arguments say what is wrong in one sentence; regularizers are values: frozen, hashable, copied, printed."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch

from sr2.regularizers import L0, L1, L0Ball, Lp, Rank, Regularizer
from tests.cases import RegularizerCase, Wrong
from tests.registry import REGULARIZERS
from tests.wrong import WRONG_REGULARIZERS

every = pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)


@pytest.mark.parametrize("wrong", WRONG_REGULARIZERS, ids=lambda wrong: wrong.words[:40])
def test_wrong_arguments(wrong: Wrong) -> None:
    with pytest.raises(wrong.error, match=wrong.words) as caught:
        wrong.call()
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


@every
def test_is_a_frozen_value(case: RegularizerCase) -> None:
    regularizer = case.regularizer
    again = pickle.loads(pickle.dumps(regularizer))
    assert again == regularizer == copy.deepcopy(regularizer)
    assert hash(again) == hash(regularizer)
    assert repr(again) == repr(regularizer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(regularizer, dataclasses.fields(regularizer)[0].name, 1)  # type: ignore[arg-type]
    assert (regularizer.separable, regularizer.convex) == (case.separable, case.convex)
    assert regularizer.diagonal == case.diagonal


def test_repr_reads_like_the_call() -> None:
    assert repr(Lp(0.1, 0.5)) == "Lp(lam=0.1, p=0.5)"
    assert eval(repr(L0Ball(k=3))) == L0Ball(k=3)


def test_numpy_numbers_are_numbers() -> None:
    assert L0Ball(k=np.int64(1)).value(torch.ones(1)) == 0
    assert Rank(np.int64(1)).value(torch.ones(2, 2)) == 0
    x = torch.tensor([1.0, 3.0])
    assert torch.equal(L1(np.float32(0.5)).prox(x, np.float32(2.0)), L1(0.5).prox(x, 2))


def test_parameters_and_gradients_are_no_trouble() -> None:
    x = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        z = L0(1.0).prox(x, 1.0)
    assert not z.requires_grad
    assert type(z) is torch.Tensor


def test_a_new_regularizer_must_say_its_terms_and_prox() -> None:
    with pytest.raises(NotImplementedError, match=r"terms\(x\)"):
        Regularizer().value(torch.ones(1))
    with pytest.raises(NotImplementedError, match=r"prox_tensor\(x, step\)"):
        Regularizer().prox(torch.ones(1), 1.0)
