"""A configuration made real: the network, its batches, and the arithmetic of its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...optim.closure.twice import untouched
from ..data import Batches, EvalBatches, eval_batches, load
from ..errors import UserError
from ..models import build
from .config import RunConfig
from .network import Network, set_float32_arithmetic
from .processes import ALONE, Processes, place

EVAL_BATCH = 500
T = TypeVar("T")


class Problem:
    """What a run trains and measures.

    Attributes:
        model: the network with its first weights, on the device.
        task: of the data set: its loss and its score.
        batches: the training batches.
        test: the test examples, or those that are held out in their place; in order, not augmented.
        loss, outputs, arithmetic: of the network in the run's precision, see `Network`.
        together: the processes that train it.
        trained: the network as they train it, each on its part of a batch; with one process, the same network.
        statistics: how many numbers `task.statistics` has.
        targets_per_example: of an image one, its label; of a window as many as it has tokens.
    """

    def __init__(self, config: RunConfig, together: Processes = ALONE) -> None:
        self.config, self.together = config, together
        device = place(config) if together.size > 1 else torch.device(config.device)
        on_cuda = device.type == "cuda"  # channels_last is the layout of cuDNN's fast kernels
        if on_cuda:
            _set_up_cuda(config.precision, config.deterministic)
        dataset = load(config.data)
        if config.hold_out:
            dataset = dataset.holding_out(config.hold_out)
        self._shape = dataset.outputs, dataset.in_shape
        model = self._build()
        self.model = model.to(device)
        if on_cuda:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.batches = Batches(
            dataset, config.batch, device, seed=config.seed, augment=config.augment, channels_last=on_cuda
        )
        self.test: EvalBatches = eval_batches(dataset, EVAL_BATCH, device, channels_last=on_cuda)
        self._kept: dict[str, Any] = {}
        self.task = self.batches.task
        self.targets_per_example = self.batches.targets[0].numel()
        self.network = Network(model, device, config.precision, self.task, compiled=config.compile)
        self.outputs, self.arithmetic = self.network.outputs, self.network.arithmetic
        self._check_forward(config, dataset.outputs)
        self.trained = self.network
        if together.size > 1:
            self.trained = Network(together.wrap(model), device, config.precision, self.task)
        self.loss = self.trained.loss

    def _build(self) -> nn.Module:
        """A network with the first weights; the generator is afterwards where it is at the start of a run."""
        torch.manual_seed(self.config.seed)
        return build(self.config.model, *self._shape)

    def start_again(self) -> None:
        """The network with its first weights, in the same tensors: what was compiled for them stays compiled."""
        self.model.load_state_dict(self._build().state_dict())
        self.model.zero_grad(set_to_none=True)
        self.model.eval()

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """What is made once for this problem and used again: `make` is called the first time."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]  # type: ignore[no-any-return]

    def load_weights(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Give the network the weights that a run's folder has."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            why = " ".join(str(error).split())
            raise UserError(f"the weights of {folder} do not fit its network {self.config.model}: {why}") from error

    def check_training(self, config: RunConfig) -> None:
        """A network that cannot be trained on such batches is said to be so before the first step; no trace is left."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            raise UserError(f"{config.model} has no parameters to train: at least one must require a gradient")
        x, _ = next(self.batches.epoch(0))
        with untouched(self.model, parameters):
            self.model.train()
            try:
                with self._failing(config, x, f" while training, {len(x)} in a batch"), torch.enable_grad():
                    before = torch.get_rng_state()
                    depends = self.outputs(x).requires_grad
                    drew = not torch.equal(before, torch.get_rng_state())
            finally:
                self.model.eval()
        if not depends:
            raise UserError(f"the outputs of {config.model} while training do not depend on its parameters")
        if drew and self.together.size > 1:
            raise UserError(
                f"{config.model} draws random numbers while training, as dropout does, and {self.together.size} "
                "processes would draw others than one: train it in one process, or leave its dropout out"
            )

    def _check_forward(self, config: RunConfig, outputs: int) -> None:
        """A network that does not fit the examples is said to be so before the first step."""
        x, y = (t[:2] for t in next(iter(self.test)))
        self.model.eval()
        with self._failing(config, x), torch.no_grad():
            out = self.outputs(x)
        expected = self.task.output_shape(y, outputs)
        if tuple(out.shape) != expected:
            raise UserError(
                f"{config.model} gives outputs of shape {tuple(out.shape)} for {len(x)} {self.task.examples} of "
                f"{config.data}: they must be of shape {expected}"
            )
        self.statistics = len(self.task.statistics(out, y))

    @contextmanager
    def _failing(self, config: RunConfig, x: Tensor, mode: str = "") -> Iterator[None]:
        """What a network finds wrong with its inputs is a mistake of the user."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            what = f"{' x '.join(map(str, x.shape[1:]))} {self.task.examples} of {config.data}"
            hint = "" if ":" in config.model else "; use another --model, as mlp for rows and transformer for text"
            raise UserError(f"{config.model} fails on the {what}{mode}: {error}{hint}") from error


class Problems:
    """The problem of the last run, for the next one if it is of the same network, data and arithmetic.

    Networks of one's own may hold more than their weights: they are made anew.
    """

    def __init__(self) -> None:
        self._last: Problem | None = None

    def of(self, config: RunConfig) -> Problem:
        """As `Problem(config)`."""
        last = self._last
        if last is None or ":" in config.model or _same_problem(last.config) != _same_problem(config):
            self._last = None  # before the next one takes its memory
            self._last = Problem(config)
        else:
            last.start_again()
        assert self._last is not None
        return self._last


def _same_problem(config: RunConfig) -> tuple[object, ...]:
    return (
        *(config.data, config.hold_out, config.model, config.batch, config.augment, config.seed),
        *(config.precision, config.compile, config.deterministic, config.device),
    )


def _set_up_cuda(precision: str, deterministic: bool) -> None:
    set_float32_arithmetic(precision)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic  # the fastest algorithms of this process, not of every process
