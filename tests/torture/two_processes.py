"""A script for torchrun: four steps under a trainer, then the same in a plain loop on the whole batches.

Arguments: trainer, folder. Every process writes what it has ended with.
"""

import copy
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sr2 import L1, SR2

STEPS, BATCH = 4, 8
OPTIONS = {"eta2": 0.5, "sigma": 0.05}  # Algorithm 1, with steps that are too long at first
RANK = int(os.environ["RANK"])


def whole(batches):
    """Of each step the batch of both processes."""
    found = [None, None]
    torch.distributed.all_gather_object(found, batches)
    for a, b in zip(*found, strict=True):
        keys = a if isinstance(a, dict) else range(len(a))
        joined = [torch.cat([a[key], b[key]]) for key in keys]
        yield dict(zip(keys, joined, strict=True)) if isinstance(a, dict) else joined


def huggingface(folder):
    import transformers

    from sr2.trainers.huggingface import SR2Trainer

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "trainers"))
    from huggingface_bert import bert, sentences

    class Recorded(SR2Trainer):
        batches = []  # noqa: RUF012

        def training_step(self, model, inputs, *others):
            self.batches.append(self._prepare_inputs(dict(inputs)))
            return super().training_step(model, inputs, *others)

    model = bert()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    plain = copy.deepcopy(model)
    arguments = transformers.TrainingArguments(
        str(folder / "trainer"),
        per_device_train_batch_size=BATCH // 2,
        max_steps=STEPS,
        average_tokens_across_devices=False,  # else the loss is times 2, and BERT's own takes no notice of the tokens
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Recorded(model, arguments, train_dataset=sentences(64), regularizer=L1(1e-4), sr2=OPTIONS)
    trainer.train()
    optimizer = SR2(plain, L1(1e-4), **OPTIONS)
    for batch in whole(trainer.batches):
        optimizer.step(lambda batch=batch: plain(**batch).loss)
    return model, trainer._sr2, plain, optimizer


def lightning(folder):
    import lightning

    from sr2.trainers.lightning import Monitor

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
            self.batches = []

        def on_train_batch_start(self, batch, batch_idx):
            self.batches.append(tuple(batch))

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            self.optimizer = SR2(self.trainer.strategy.model, L1(1e-3), **OPTIONS)
            return self.optimizer

    torch.manual_seed(0)
    x, y = torch.randn(STEPS * BATCH, 6), torch.arange(STEPS * BATCH) % 3
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        callbacks=[Monitor()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    model, plain = Net(), Net()
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=BATCH // 2))
    optimizer = SR2(plain, L1(1e-3), **OPTIONS)
    for inputs, targets in whole(model.batches):
        step = lambda x=inputs, y=targets: nn.functional.cross_entropy(plain.network(x), y)  # noqa: E731
        optimizer.step(step)
    return model, model.optimizer, plain, optimizer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[2])
    model, mine, plain, optimizer = {"huggingface": huggingface, "lightning": lightning}[sys.argv[1]](folder)
    found = {
        name: {"weights": [p.detach() for p in m.parameters()], "sigma": o.sigma, "counts": o.counts}
        for name, m, o in (("together", model, mine), ("alone", plain, optimizer))
    }
    torch.save(found, folder / f"{RANK}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)
