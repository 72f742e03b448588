"""A script for torchrun: four steps under a trainer, and what every process ends with. Arguments: trainer, folder."""

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
PROCESSES, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def huggingface(folder):
    import transformers

    from sr2.trainers.huggingface import SR2Trainer

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "trainers"))
    from huggingface_bert import bert, sentences

    model = bert()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    arguments = transformers.TrainingArguments(
        str(folder / "trainer"),
        per_device_train_batch_size=BATCH // PROCESSES,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SR2Trainer(model, arguments, train_dataset=sentences(64), regularizer=L1(1e-4), sr2=OPTIONS)
    trainer.train()
    return model, trainer._sr2


def lightning(folder):
    import lightning

    from sr2.trainers.lightning import Monitor

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            model = self if PROCESSES == 1 else self.trainer.strategy.model
            self.optimizer = SR2(model, L1(1e-3), **OPTIONS)
            return self.optimizer

    torch.manual_seed(0)
    x, y = torch.randn(STEPS * BATCH, 6), torch.arange(STEPS * BATCH) % 3
    if PROCESSES == 2:  # the sampler gives them every other row: this makes the same batches of both
        x, y = (t.view(STEPS, 2, BATCH // 2, -1).transpose(1, 2).reshape(STEPS * BATCH, -1) for t in (x, y))
        y = y.flatten()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp" if PROCESSES > 1 else "auto",
        logger=False,
        callbacks=[Monitor()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    model = Net()
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=BATCH // PROCESSES))
    return model, model.optimizer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[2])
    model, optimizer = {"huggingface": huggingface, "lightning": lightning}[sys.argv[1]](folder)
    found = {"weights": [p.detach() for p in model.parameters()], "sigma": optimizer.sigma, "counts": optimizer.counts}
    torch.save(found, folder / f"{PROCESSES}-{RANK}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    os._exit(0)
