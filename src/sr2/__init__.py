"""sr2: train sparse PyTorch networks under nonsmooth regularizers, without a learning rate to tune."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What `public` names, imported where the first name is asked for.

    `import sr2` alone does not import torch: the command line begins with it, and can then answer an interrupt.
    """
    public = import_module(f"{__name__}.public")
    names = getattr(public, "__all__", ())  # none while it is being imported
    if name == "__all__" or name in names:
        globals()[name] = getattr(public, name)
    if name in globals():  # or it is a package that was imported by now
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
