"""Arguments that an optimizer does not take: one sentence, with what it takes, or who takes them."""

import inspect

import pytest
import torch
from torch import nn

from sr2 import L1, SR2, ProxGEN, ProxSGD
from tests.optimizers import OPTIMIZERS, named

every = pytest.mark.parametrize("case", OPTIMIZERS, ids=named)


@every
def test_what_another_optimizer_has_is_said_to_be_there(case):
    takes = {other.name: inspect.signature(other.kind).parameters for other in OPTIMIZERS}
    foreign = {name for theirs in takes.values() for name in theirs} - set(takes[case.name]) - {"lr"}
    assert len(foreign) > 2
    for name in foreign:
        with pytest.raises(TypeError) as error:
            case.kind(nn.Linear(2, 1), L1(1e-3), **{name: 0.5})
        said, _, own = str(error.value).partition(" it, and ")
        assert said.startswith(f"{case.name} has no {name}=0.5: ")
        assert [other for other in takes if other in said.partition(": ")[2]] == [o for o in takes if name in takes[o]]
        assert own == f"{case.name} has {', '.join(list(takes[case.name])[1:])}"


@every
@pytest.mark.parametrize(
    ("options", "words"),
    [({"metrc": "adam"}, "did you mean metric=?"), ({"nesterov": True}, "it has regularizer, ")],
    ids=str,
)
def test_what_nobody_has(case, options, words):
    ((name, value),) = options.items()
    with pytest.raises(TypeError) as error:
        case.kind(nn.Linear(2, 1), **options)
    assert str(error.value).startswith(f"{case.name} has no {name}={value!r}: {words}")


@pytest.mark.parametrize(("kind", "places"), [(SR2, 2), (ProxGEN, 3), (ProxSGD, 3)])
def test_one_more_by_place_is_to_be_named(kind, places):
    given = [nn.Linear(2, 1), L1(1e-3), 0.1, 0.9][:places]
    kind(*given)
    with pytest.raises(
        TypeError, match=rf"{kind.__name__} takes params, regularizer.* by place, and 7 is one more: name"
    ):
        kind(*given, 7)


@every
@pytest.mark.parametrize(("option", "value"), [("foreach", "maybe"), ("foreach", 1), ("capturable", "no")])
def test_what_is_true_or_false_is_no_text(case, option, value):
    with pytest.raises(TypeError, match=f"{case.name}: {option} must be True.*, and is {value!r}"):
        case.make(nn.Linear(2, 1), **{option: value})


@every
def test_the_repr_counts_in_english(case):
    pair = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    made = case.make([{"params": pair}, {"params": [nn.Parameter(torch.ones(1))]}], L1(1e-3))
    first, second = repr(made).splitlines()[1:3]
    assert first.startswith("  group 0: 2 tensors, 4 parameters, L1(lam=0.001)")
    assert second.startswith("  group 1: 1 tensor, 1 parameter, L1(lam=0.001)")
