"""A whole training step as one CUDA graph: launched once, no host work, no host read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


def run_beside(body: Callable[[], object]) -> None:
    """`body()` on a stream of its own: what runs before a capture must not run on the default one."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)


class CapturedStep(Generic[T]):
    """`body()` captured as a CUDA graph; calling the object replays it and returns the same tensors, filled anew.

    `body` does one training step with tensors that stay where they are: it may prepare a batch, must call
    `optimizer.step(closure)` once, and may keep statistics. It is first run `warmup` times, for real.

    >>> def body():                                                           # doctest: +SKIP
    ...     return optimizer.step(lambda: loss_fn(model(x), y))
    >>> step = CapturedStep(optimizer, body)                                  # doctest: +SKIP
    >>> for images, labels in loader:                                         # doctest: +SKIP
    ...     x.copy_(images), y.copy_(labels)
    ...     loss = step()

    Args:
        optimizer: made with capturable=True, on a CUDA device.
        body: one training step.
        warmup: how often to run it before the capture, at least once.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, body: Callable[[], T], warmup: int = 3) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("CapturedStep needs a CUDA device: call optimizer.step directly on the CPU")
        if not getattr(optimizer, "capturable", False):
            raise ValueError(f"CapturedStep needs {type(optimizer).__name__}(..., capturable=True)")
        for _ in range(max(1, warmup)):
            run_beside(body)
        self.graph = torch.cuda.CUDAGraph()
        self._body = body  # the graph reads its tensors, so they must live as long
        # The second evaluation draws from a twin of the generator that advances in step with it.
        self._default = torch.cuda.default_generators[torch.cuda.current_device()]
        self._twin = self._default.clone_state()
        self.graph.register_generator_state(self._twin)
        optimizer._twin = self._twin  # type: ignore[attr-defined]
        try:
            with torch.cuda.graph(self.graph):
                self._result = body()
        finally:
            optimizer._twin = None  # type: ignore[attr-defined]

    def __call__(self) -> T:
        """Replay: one more step."""
        self._twin.set_state(self._default.get_state())
        self.graph.replay()
        return self._result
