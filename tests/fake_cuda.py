"""A CUDA device that is not there: tensors without data, kernels that are compiled for sm_90 and never launched.

torch's fake tensors know their device, shape and dtype: what mixes up devices fails on them as on a GPU, and what reads
a number back finds none. torch for the CPU lacks one thing for that, a guard that sets the current device, which three
lines of C++ give. Triton compiles without a GPU. A launch goes through its own code, which sees the types, alignments
and constants of its arguments, up to the point where it would compile; the kernels are compiled later, each kind once.

For a process of its own, which Triton has not been asked to interpret in: see `optim/test_fake_cuda.py`.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, FakeGuardImpl<DeviceType::CUDA>) }
"""
READS = ("item", "_local_scalar_dense", "equal", "is_nonzero")
"""Operations whose result is a number of the host."""
MODE = FakeTensorMode()
"""One for all: what our own code has copied to a device once, and keeps, belongs to it."""
SOURCES = {"_to_copy": 0, "copy_": 1, "_foreach_copy_": 1}
"""Operations that may go from one device to another, and which argument they copy."""


def load_guard(folder: Path) -> None:
    """Lets torch be on a CUDA device, where nothing can run. For the whole process: nobody can take it back."""
    source, library, root = folder / "guard.cpp", folder / "guard.so", Path(torch.__file__).parent
    source.write_text(GUARD)
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10"]
    subprocess.run(["g++", str(source), "-o", str(library), *flags], check=True)
    ctypes.CDLL(str(library))


class Watch(TorchDispatchMode):
    """Answers every read with a one, and notes what crosses between the host and the device."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Forget what was noted."""
        self.reads: list[str] = []
        """What waits for a number of the device."""
        self.constants: list[str] = []
        """What takes a number of the host beside tensors of the device: to a CUDA graph it is the same for good."""
        self.waits: list[str] = []
        """Copies to the device that the host waits for."""
        self.passing: list[str] = []
        """Copies out of memory that is not pinned: a graph would read it again when it is no longer there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if func.namespace != "aten":  # a question, as for a device
            return func(*args, **kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, FakeTensor)]
        devices = _devices(given)
        if name in READS:
            self.reads += [name] * ("cuda" in devices)
            return _one(given[0]) if name in READS[:2] else True
        with self:  # so that what it is made of is seen too
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = func(*args, **kwargs)
        if name in SOURCES:
            came, went = _devices(args[SOURCES[name]]), _devices(out)
            self.reads += [name] * (came == {"cuda"} and went == {"cpu"})
            if came == {"cpu"} and went == {"cuda"}:
                self.waits += [name] * (not kwargs.get("non_blocking", len(args) > 2 and args[2]))
                self.passing += [name] * any(not hasattr(t, "pinned") for t in given if t.fake_device.type == "cpu")
        elif devices == {"cuda", "cpu"}:
            self.constants.append(name)
        return out


def _devices(tensors: Any) -> set[str]:
    """Asked of fake tensors themselves: each t.device would be a question to every mode."""
    return {t.fake_device.type for t in tree_leaves(tensors) if isinstance(t, FakeTensor)}


def _one(t: Tensor) -> Any:
    with _disable_current_modes():
        known = getattr(t, "constant", None)  # what the host has just written there
        return (torch.ones((), dtype=t.dtype) if known is None else known).item()


class Launches:
    """The kinds of launches that were asked for, as Triton tells them apart when it decides whether to compile."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}

    def note(self, *, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:  # noqa: A002 - Triton's own word
        assert not compile["enable_fp_fusion"], (
            f"{fn.name} must say enable_fp_fusion=False: Triton warns where it is not said"
        )
        self.seen.setdefault((fn.name, key), (fn.jit_function, compile))
        return True  # "it is compiled elsewhere": nothing is launched then

    def compiled(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Of each kind the kernel's name, its constants by name, and its code, compiled for `TARGET`."""
        for (name, _), (kernel, how) in self.seen.items():
            constants = {kernel.arg_names[place]: value for (place,), value in how["constants"].items()}
            yield name, constants, kernel.preload(how["specialization_data"]).asm


class H200:
    """What Triton asks of a device before it launches."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@contextmanager
def fake_cuda() -> Iterator[tuple[Watch, Launches]]:
    """Inside, tensors are fake, and those on "cuda" stand for a GPU's."""
    import triton
    from triton.runtime import driver

    from sr2.regularizers import selection

    driver.set_active(H200())
    launches, places, drawn = Launches(), dict[int, int](), {}

    def address(t: Tensor) -> int:
        place = places.setdefault(t.untyped_storage()._cdata, len(places) + 1)
        return 512 * place + t.storage_offset() * t.element_size()

    def backward(loss: Tensor, *_: Any) -> None:
        """Autograd's engine wants a device of its own: gradients like the parameters that the loss depends on."""
        nodes, seen = [loss.grad_fn], set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if (x := getattr(node, "variable", None)) is not None:
                x.grad = torch.empty_like(x)
            nodes += [n for n, _ in node.next_functions]

    def grad(outputs: Any, inputs: Any, *_: Any, create_graph: bool = False, **__: Any) -> Any:
        return [torch.empty_like(x) * (x if create_graph else 1) for x in inputs]

    def in_kernel(scores: Any) -> bool:
        """As it is, but for the class of the tensors."""
        return all(s.is_cuda and s.dtype == torch.float32 for s in scores)

    def pinned(t: Tensor) -> Tensor:
        copy = t.clone()
        copy.pinned = True  # type: ignore[attr-defined]
        return copy

    def state(device: Any) -> Tensor:
        return drawn.setdefault(str(device), torch.empty(16, dtype=torch.uint8))

    with ExitStack() as stack:
        for owner, name, stub in (
            (FakeTensor, "data_ptr", address),
            (FakeTensor, "pin_memory", pinned),
            (Tensor, "backward", backward),
            (torch.autograd, "grad", grad),
            (torch.cuda, "get_rng_state", state),
            (torch.cuda, "set_rng_state", lambda *_: None),
            (selection, "in_kernel", in_kernel),
            (triton.knobs.runtime, "jit_cache_hook", launches.note),
        ):
            stack.enter_context(mock.patch.object(owner, name, stub))
        stack.enter_context(MODE)
        yield stack.enter_context(Watch()), launches


@contextmanager
def capture() -> Iterator[None]:
    """As while a CUDA graph is captured, as far as our own code asks."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("sr2.") and hasattr(module, "capturing"):
                stack.enter_context(mock.patch.object(module, "capturing", return_value=True))
        yield
