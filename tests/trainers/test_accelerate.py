"""Accelerate: a state that is saved and loaded goes on to the same bits; accumulation that skips steps is said."""

import sys
from pathlib import Path

import pytest
import torch

accelerate = pytest.importorskip("accelerate")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "trainers"))
from accelerate_digits import epoch, made  # noqa: E402


@pytest.fixture
def accelerator():
    """Accelerate keeps its settings in classes."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    yield lambda **options: accelerate.Accelerator(cpu=True, **options)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def test_it_goes_back_and_on_to_the_same_bits(accelerator, tmp_path, said):
    accelerator = accelerator()
    model, loader, optimizer = made(accelerator)
    epoch(accelerator, model, loader, optimizer)
    accelerator.save_state(str(tmp_path / "state"))
    ends = []
    for _ in range(3):  # load_state loads into what was loaded into
        accelerator.load_state(str(tmp_path / "state"))
        epoch(accelerator, model, loader, optimizer)
        ends.append([t.clone() for t in model.state_dict().values()])
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))
    assert said == []


def test_another_process_takes_the_state_up(accelerator, tmp_path):
    first = accelerator()
    model, loader, optimizer = made(first)
    epoch(first, model, loader, optimizer)
    first.save_state(str(tmp_path / "state"))
    epoch(first, model, loader, optimizer)
    expected = [t.clone() for t in model.state_dict().values()]
    second = accelerate.Accelerator(cpu=True)
    other, loader, optimizer = made(second)
    second.load_state(str(tmp_path / "state"))
    epoch(second, other, loader, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(expected, other.state_dict().values(), strict=True))


def test_bf16_is_seen(accelerator, said):
    accelerator = accelerator(mixed_precision="bf16")
    model, loader, optimizer = made(accelerator)
    epoch(accelerator, model, loader, optimizer)
    assert optimizer.optimizer._watch.autocast == torch.bfloat16
    assert said == []


def test_accumulation_that_skips_steps_is_said(accelerator, said):
    accelerator = accelerator(gradient_accumulation_steps=2)
    model, loader, optimizer = made(accelerator)
    for x, y in loader:
        with accelerator.accumulate(model):
            optimizer.step(lambda x=x, y=y: torch.nn.functional.cross_entropy(model(x), y))
    assert sum(optimizer.optimizer.counts.values()) == len(loader) // 2
    assert len(said) == 1
    assert "Accelerate skips 1 of 2 calls of step" in said[0]
