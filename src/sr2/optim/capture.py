"""A whole training step as one CUDA graph: launched once, no host work, no host read. Two where not all are tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from .parts.testing import Testing
from .trust import is_tested

T = TypeVar("T")


def run_beside(body: Callable[[], object]) -> None:
    """`body()` on a stream of its own: what runs before a capture must not run on the default one."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def kept_pace(optimizer: Any, testing: Testing | None, tested: bool) -> Iterator[None]:
    """The next step is of this kind, and does not count: what is captured is not done."""
    if testing is None:
        yield
        return
    before, testing.forced = replace(optimizer._search.pace), tested
    try:
        yield
    finally:
        optimizer._search.pace, testing.forced = before, None


def next_is_tested(optimizer: Any, testing: Testing | None) -> bool:
    """Of which kind the next replay is, of which the host sees nothing but that it is launched."""
    if testing is None:
        return True
    tested = is_tested(testing, optimizer._search)
    optimizer._search.pace.go_on(tested=tested)
    return tested


class CapturedStep(Generic[T]):
    """`body()` captured as a CUDA graph; calling the object replays it and returns the same tensors, filled anew.

    `body` does one training step with tensors that stay where they are: it may prepare a batch, must call
    `optimizer.step(closure)` once, and may keep statistics. It is first run `warmup` times, for real. Under
    `test_every` there are two graphs, of a step that is tested and of one that is not, and the host counts; "auto"
    reads one number after each test. Each graph returns its own tensors.

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
        self._body = body  # the graph reads its tensors, so they must live as long
        self._optimizer = optimizer
        # The second evaluation draws from a twin of the generator that advances in step with it.
        self._default = torch.cuda.default_generators[torch.cuda.current_device()]
        self._twin = self._default.clone_state()
        self._testing: Testing | None = getattr(optimizer, "testing", None)
        optimizer._twin = self._twin  # type: ignore[attr-defined]
        try:
            self._captured = {tested: self._capture(tested) for tested in ((True, False) if self._testing else (True,))}
        finally:
            optimizer._twin = None  # type: ignore[attr-defined]

    def _capture(self, tested: bool) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._twin)
        with kept_pace(self._optimizer, self._testing, tested), torch.cuda.graph(graph):
            return graph, self._body()

    @property
    def graph(self) -> torch.cuda.CUDAGraph:
        """The graph of a step that is tested, or of any step where there is one kind."""
        return self._captured[True][0]

    def __call__(self) -> T:
        """Replay: one more step."""
        graph, result = self._captured[next_is_tested(self._optimizer, self._testing)]
        self._twin.set_state(self._default.get_state())
        graph.replay()
        return result
