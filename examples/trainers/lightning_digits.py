"""SR2 in Lightning: a progress bar with sigma, rho and zeros; the average is what is validated and saved.

python examples/trainers/lightning_digits.py
"""

import sys
import tempfile

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sr2 import L1, SR2, recalibrate_, sparsity
from sr2.trainers.lightning import Averaged, Monitor


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def validation_step(self, batch):
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).double().mean(), prog_bar=True)

    def configure_optimizers(self):
        return SR2(self, L1(1e-3))


def main(folder):
    lightning.seed_everything(0, verbose=False)
    images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
    loader = DataLoader(TensorDataset(images.float() / 16, labels), batch_size=128, shuffle=True)
    rest = DataLoader(loader.dataset, batch_size=600)
    averaged = Averaged(lambda digits: recalibrate_(digits.network, loader))  # validated and saved: the average
    callbacks = [Monitor(every=5), averaged]
    trainer = lightning.Trainer(max_epochs=3, callbacks=callbacks, default_root_dir=folder, logger=False)
    trainer.fit(Digits(), loader, rest)
    model = Digits.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    with torch.no_grad():
        accuracy = (model.eval().network(images.float() / 16).argmax(1) == labels).double().mean()
    print(f"accuracy {100 * accuracy:.1f} %")
    print(sparsity(model))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
