"""Ctrl-C while the command line is still importing torch ends in a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sr2

SOURCE = str(Path(sr2.__file__).parents[1])
STARTS = {
    "python -m sr2": ["-m", "sr2", "train"],
    "sr2": ["-c", "import sys; from sr2.cli import main; sys.exit(main(['train']))"],  # as the installed script does it
}


@pytest.mark.parametrize("name", STARTS)
def test_an_interrupt_while_torch_is_imported(name, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), SOURCE])
    done = subprocess.run(
        [sys.executable, *STARTS[name]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stderr) == (130, "stopped before anything began\n")


def test_importing_sr2_imports_nothing_until_a_name_is_asked_for():
    code = (
        "import sys, sr2\n"
        "assert 'torch' not in sys.modules\n"
        "from sr2 import *\n"
        "assert all(name in globals() for name in sr2.__all__) and 'torch' in sys.modules\n"
        "assert set(sr2.__all__) <= set(dir(sr2))\n"
        "try:\n    sr2.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "module 'sr2' has no attribute 'nothing'\n"), done.stderr
