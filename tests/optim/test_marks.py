"""The marks by which an example is known when it comes again."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from sr2.optim.closure.examples import WIDEST, Examples, marks_of

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.cfloat,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3,), (2, 5), (3, 8, 8), (2 * WIDEST + 3,)], ids=str)
def test_an_example_has_one_mark_wherever_it_stands(dtype, shape):
    torch.manual_seed(0)
    x = torch.randint(0, 2, (32, *shape)).to(dtype)
    marks = marks_of([x])
    for row in torch.randperm(32).split(5):
        assert marks_of([x[row]]) == [marks[i] for i in row]


def test_the_layout_of_memory_says_nothing():
    x = torch.randn(8, 3, 4, 4)
    marks = marks_of([x])
    assert marks_of([x.contiguous(memory_format=torch.channels_last)]) == marks
    assert marks_of([torch.stack([x, -x], 1)[:, 0]]) == marks
    assert marks_of([x.clone().requires_grad_()]) == marks


def test_no_two_of_many_examples_have_the_same_mark():
    """Also where they differ in a few bits that are all alike."""
    draw = np.random.default_rng(0)
    images = np.unique(draw.integers(0, 2, (20000, 64)) * 16.0, axis=0)
    assert len(set(marks_of([torch.tensor(images)]))) == len(images)
    for dtype, upper in itertools.product((torch.float64, torch.float32, torch.bfloat16), (-1.0, 2.0, -0.0)):
        assert len(set(marks_of([torch.where(torch.tensor(images) > 0, upper, 0.0).to(dtype)]))) == len(images)
    one_hot = torch.eye(2000)
    assert len(set(marks_of([one_hot]))) == 2000
    pairs = torch.tensor(list(itertools.combinations(range(100), 2)))
    assert len(set(marks_of([pairs]))) == len(pairs)


def test_all_tensors_with_as_many_rows_count():
    x, y, other = torch.randn(4, 3), torch.arange(4), torch.randn(7)
    both = marks_of([(x,), {"y": y}])
    assert both != marks_of([x])
    assert both == marks_of([[x], {"y": {"deeper": y}, "other": other, "words": "none"}])
    assert marks_of([(x[:2],), {"y": y[:2]}]) == both[:2]


@pytest.mark.parametrize("inputs", [(), (3,), (torch.tensor(1.0),), (torch.eye(3).to_sparse(),)], ids=str)
def test_what_has_no_examples_has_no_marks(inputs):
    assert marks_of(inputs) == []


def test_large_examples_are_not_copied_and_too_many_are_not_looked_at():
    mask = torch.ones(4, 1, 1, 2**14, dtype=torch.bool).expand(4, 2**9, 2**10, 2**14)
    assert len(set(marks_of([torch.arange(4), mask]))) == 4
    assert marks_of([torch.randn(2**16, 128)]) == []


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
def test_quantized_and_nested_ones_are_passed_over():
    x = torch.randn(4, 3)
    assert marks_of([torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)]) == []
    assert marks_of([torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)]) == []


def test_complex_views_have_the_marks_of_their_values():
    x = torch.randn(4, 3, dtype=torch.cfloat)
    assert marks_of([x.conj()]) == marks_of([x.conj().resolve_conj()]) != marks_of([x])


def test_a_copy_that_a_closure_makes_sees_nothing():
    model = nn.Linear(3, 1)
    with Examples(model) as examples:
        twin = copy.deepcopy(model)
        model(torch.randn(4, 3))
        model(torch.randn(2, 3))
    assert len(examples.marks) == 6
    (hook,) = twin._forward_pre_hooks.values()
    twin(torch.randn(4, 3))
    assert hook.__self__.marks == []


def test_an_example_that_is_given_twice_counts_once():
    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    with Examples(model) as examples:
        model(x)
        model(x.flip(0))
    assert sorted(examples.marks) == sorted(marks_of([x]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:DeprecationWarning")
def test_inside_a_transform_nothing_is_seen():
    model = nn.Linear(3, 1)
    with Examples(model) as examples:
        torch.func.vmap(model)(torch.randn(4, 2, 3))
        torch.jit.trace(model, torch.randn(4, 3), check_trace=False)
    assert examples.marks == []
    assert not model._forward_pre_hooks


def test_a_transform_leaves_nothing_behind():
    model, x = nn.Linear(11, 1), torch.randn(4, 11)
    with Examples(model):
        torch.func.functionalize(model)(x)
    with Examples(model) as examples:
        model(x)
    assert len(examples.marks) == 4
