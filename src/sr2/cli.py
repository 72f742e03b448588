"""The command line's outermost layer: sentences and exit codes. The commands are in `experiments/commands.py`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from . import __version__

EXTRAS = ("tyro", "rich", "safetensors", "sklearn", "matplotlib", "PIL")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, 2 for a mistake of the user, 130 when interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["--version"], ["-V"]):
        print(f"sr2 {__version__}")
        return 0
    try:
        from .experiments.commands import build, run
        from .experiments.errors import UserError
        from .experiments.run.stop import StoppedError
    except ModuleNotFoundError as error:
        return _missing(error)
    except KeyboardInterrupt:
        return _say("stopped before anything began", 130)
    begun = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _note
            app, begun = build(arguments), True
            return run(arguments, app)
    except UserError as error:
        return _say(f"error: {error}", 2)
    except StoppedError as error:
        return _say(str(error), 130)
    except KeyboardInterrupt:
        at_once = "stopped at once: what was saved last is kept, and the same command goes on from there"
        return _say(at_once if begun else "stopped before anything began", 130)
    except BrokenPipeError:  # `sr2 paper list | head`
        sys.stdout = None
        return 0
    except ModuleNotFoundError as error:
        return _missing(error)


def _missing(error: ModuleNotFoundError) -> int:
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        raise error
    return _say(f"error: this command needs {name}: pip install 'sr2[experiments]'", 2)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    from .experiments.run.processes import speaks

    if speaks():
        print(f"note: {message}", file=sys.stderr)


def _say(sentence: str, code: int) -> int:
    rank = os.environ.get("RANK", "0")  # of torchrun, whose processes may each have something to say
    print(sentence if rank == "0" else f"process {rank}: {sentence}", file=sys.stderr)
    return code
