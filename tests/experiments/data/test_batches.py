"""Batches: a pure function of (seed, epoch), equal to a slow and obviously right twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sr2.experiments.data import Batches, Dataset, eval_batches, load
from sr2.experiments.errors import UserError
from sr2.experiments.plans import augment_batch, epoch_plan
from sr2.experiments.tasks import Images

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def colour(n: int = 50, h: int = 7, w: int = 9) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, h, w), generator=generator).byte()
    y = torch.randint(10, (n,), generator=generator)
    return Dataset("colour", x, y, x[:11], y[:11], 10, Images(MEAN, STD, "crop_flip"))


def slow(image: np.ndarray, dx: int, dy: int, flip: bool, pad: int) -> np.ndarray:
    """Pad by zeros, cut the window, mirror it, normalize in float64."""
    _, h, w = image.shape
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    window = padded[:, pad + dy : pad + dy + h, pad + dx : pad + dx + w]
    window = window[:, :, ::-1] if flip else window
    return (window / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_augmentation_equals_its_slow_twin(pad: int, device: str) -> None:
    images = colour(400).train_inputs
    plan = epoch_plan(400, seed=3, epoch=5, pad=pad)
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    on_device = [t.to(device) for t in (images, plan.index, plan.dx, plan.dy, plan.flip, mean, std)]
    fast = augment_batch(*on_device).cpu()
    expected = np.stack(
        [
            slow(images[i].numpy(), dx, dy, flip, pad)
            for i, dx, dy, flip in zip(
                plan.index.tolist(), plan.dx.tolist(), plan.dy.tolist(), plan.flip.tolist(), strict=True
            )
        ]
    )
    assert fast.dtype == torch.float32
    np.testing.assert_allclose(fast.numpy(), expected, atol=2e-6)
    # Exact: the bytes that come back are those that went in.
    back = (fast.double() * std.double()[:, None, None] + mean.double()[:, None, None]) * 255
    exact = (expected * np.array(STD)[:, None, None] + np.array(MEAN)[:, None, None]) * 255
    assert (back.round().numpy() == exact.round()).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cpu_and_gpu_make_the_same_bits() -> None:
    for (x, y), (x_gpu, y_gpu) in zip(
        Batches(colour(), 16, "cpu").epoch(2), Batches(colour(), 16, "cuda").epoch(2), strict=True
    ):
        assert torch.equal(x, x_gpu.cpu())
        assert torch.equal(y, y_gpu.cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_is_a_legal_body_of_a_cuda_graph() -> None:
    batches = Batches(colour(), 16, "cuda")
    plan = batches.plan(0)
    static = plan[0:16].to("cuda")
    for name in ("index", "dx", "dy", "flip"):
        object.__setattr__(static, name, getattr(static, name).clone())
    batches.make(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x, y = batches.make(static)
    part = plan[16:32]
    for name in ("index", "dx", "dy", "flip"):
        getattr(static, name).copy_(getattr(part, name))
    graph.replay()
    expected_x, expected_y = batches.make(part)
    assert torch.equal(x, expected_x)
    assert torch.equal(y, expected_y)


def test_a_plan_is_a_pure_function_of_its_arguments() -> None:
    one = epoch_plan(1000, seed=1, epoch=2)
    torch.manual_seed(7)
    torch.rand(3)
    two = epoch_plan(1000, seed=1, epoch=2)
    for name in ("index", "dx", "dy", "flip"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    state = torch.random.get_rng_state()
    others = [epoch_plan(1000, seed=s, epoch=e) for s, e in ((1, 3), (2, 2), (2, 1), (12, 0))]
    assert torch.equal(state, torch.random.get_rng_state())  # the global generator is left alone
    for other in others:
        assert not torch.equal(one.index, other.index)
        assert not torch.equal(one.flip, other.flip)
    assert one.index.sort().values.tolist() == list(range(1000))
    assert set(one.dx.tolist()) == set(one.dy.tolist()) == set(range(-4, 5))
    assert 400 < int(one.flip.sum()) < 600
    assert not epoch_plan(100, 0, 0, flip=False).flip.any()


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("augment", [True, False])
def test_an_epoch_can_start_in_the_middle(drop_last: bool, augment: bool) -> None:
    batches = Batches(colour(50), 16, "cpu", seed=4, drop_last=drop_last, augment=augment)
    whole = list(batches.epoch(1))
    assert len(whole) == len(batches) == (3 if drop_last else 4)
    assert [len(y) for _, y in whole] == [16, 16, 16] + [2] * (not drop_last)
    again = Batches(colour(50), 16, "cpu", seed=4, drop_last=drop_last, augment=augment)
    for start in range(len(batches) + 1):
        rest = list(again.epoch(1, start=start))
        assert len(rest) == len(whole) - start
        for (x, y), (x_whole, y_whole) in zip(rest, whole[start:], strict=True):
            assert torch.equal(x, x_whole)
            assert torch.equal(y, y_whole)


def test_every_image_is_seen_once_with_its_own_label() -> None:
    data = load("digits")
    batches = Batches(data, 100, "cpu", drop_last=False)
    assert not batches.augment  # digits are not mirrored
    seen = torch.cat([torch.cat([x.flatten(1), y[:, None].float()], 1) for x, y in batches.epoch(0)])
    assert isinstance(data.task, Images)
    x = (data.train_inputs.float() - 255 * data.task.mean[0]) / (255 * data.task.std[0])
    expected = torch.cat([x.flatten(1), data.train_targets[:, None].float()], 1)
    torch.testing.assert_close(_sorted(seen), _sorted(expected))


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack(sorted(rows, key=lambda row: [round(v, 3) for v in row.tolist()]))


def test_dtype_and_memory_format() -> None:
    x, _ = next(Batches(colour(), 16, "cpu", dtype=torch.bfloat16, channels_last=True).epoch(0))
    assert x.dtype == torch.bfloat16
    assert x.is_contiguous(memory_format=torch.channels_last)
    x, _ = next(Batches(colour(), 16, "cpu").epoch(0))
    assert x.is_contiguous()
    x, _ = next(iter(eval_batches(colour(), 4, "cpu", dtype=torch.bfloat16, channels_last=True)))
    assert x.dtype == torch.bfloat16
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_evaluation_walks_through_all_in_order_as_often_as_asked() -> None:
    data = colour()
    batches = eval_batches(data, 4, "cpu")
    assert len(batches) == 3
    for _ in range(2):
        x, y = (torch.cat(part) for part in zip(*batches, strict=True))
        assert torch.equal(y, data.test_targets)
        expected = [slow(image.numpy(), 0, 0, False, 0) for image in data.test_inputs]
        np.testing.assert_allclose(x.numpy(), np.stack(expected), atol=2e-6)


@pytest.mark.parametrize("batch_size", [0, 51])
def test_a_batch_size_that_does_not_fit(batch_size: int) -> None:
    with pytest.raises(UserError, match=f"from 1 to the 50 images of colour, and is {batch_size}"):
        Batches(colour(), batch_size, "cpu")
