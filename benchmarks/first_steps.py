"""What SR2 does in its first steps on one of the paper's cells, step by step, on the CPU.

    python benchmarks/first_steps.py cifar10-densenet121-sr2-l0-1e-2 40 eta2=0.99 gamma3=0.8
    python benchmarks/first_steps.py cifar10-resnet34-sr2-l0-1e-3 12 eta2=0.9

Settings of the run are given as name=value. `docs/sigma.md` quotes what it prints.
"""

from __future__ import annotations

import argparse
import json

from sr2.experiments.errors import UserError
from sr2.experiments.paper.recipes import recipe
from sr2.experiments.run.build import checked, make_optimizer
from sr2.experiments.run.evaluate import percent_zero
from sr2.experiments.run.problem import Problem
from sr2.optim import SR2


def value(text: str) -> object:
    """A number where it is one."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    """Print a line a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="of SR2, as `sr2 paper list` names it")
    parser.add_argument("steps", type=int)
    parser.add_argument("settings", nargs="*", metavar="name=value")
    args = parser.parse_args()
    try:
        pairs = (pair.partition("=") for pair in args.settings)
        changed = {name: value(text) for name, _, text in pairs}
        config = checked(recipe(args.cell).having(**changed))
        if config.optimizer != "sr2":
            raise UserError(
                f"{args.cell} is a cell of {config.optimizer}, and the steps shown are SR2's: name one of sr2"
            )
        problem = Problem(config)
    except UserError as error:
        parser.error(str(error))
    optimizer = make_optimizer(config, problem.model)
    assert isinstance(optimizer, SR2)
    problem.model.train()
    print(" step   loss  trial      rho     sigma  predicted  zeros %")
    for step, (x, y) in enumerate(problem.batches.epoch(0), start=1):
        optimizer.step(lambda x=x, y=y: problem.loss(x, y)[0])  # type: ignore[misc]
        last, zeros = optimizer.last_step, percent_zero(problem.model)
        assert last is not None
        numbers = f"{last.loss:6.3f} {last.trial_loss:6.3f} {last.rho:8.4f} {last.sigma:9.4g} {last.predicted:10.4g}"
        print(f"{step:5d} {numbers} {zeros:8.2f}{'' if last.accepted else '  rejected'}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
