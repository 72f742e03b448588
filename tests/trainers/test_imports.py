"""The library brings none of the trainers along."""

import subprocess
import sys


def test_importing_the_library_imports_no_trainer():
    code = (
        "import sys, torch, sr2\n"
        "from sr2 import *\n"
        "model = torch.nn.Linear(3, 1)\n"
        "SR2(model, L1(0.1)).step(lambda: model(torch.ones(2, 3)).square().mean())\n"
        "names = ('lightning', 'transformers', 'accelerate', 'skorch', 'tensorboard', 'sr2.trainers')\n"
        "print([n for n in sys.modules if n.startswith(names)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
