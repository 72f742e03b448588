"""Lightning: automatic optimization, accumulation, clipping, bf16-mixed, schedulers, checkpoints to the same bits."""

import csv
import math
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sr2 import L1, SR2, recalibrate_

lightning = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import LearningRateMonitor  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from sr2.trainers.lightning import Accumulates, Averaged, Monitor  # noqa: E402
from tests.tools import remembered  # noqa: E402

torch.manual_seed(0)
X, Y = torch.randn(64, 6), torch.arange(64) % 3


class Net(lightning.LightningModule):
    def __init__(self, dropout=0.0, scheduler=False):
        super().__init__()
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, 3))
        self.scheduler, self.seen = scheduler, []

    def training_step(self, batch, batch_idx):
        x, y = batch
        torch.manual_seed(self.global_step)  # Lightning does not save the state of generators
        self.seen.append(torch.is_autocast_enabled("cpu"))
        return nn.functional.cross_entropy(self.network(x), y)

    def configure_optimizers(self):
        self.optimizer = SR2(self, L1(1e-3), eta2=0.5)
        if self.scheduler:
            return [self.optimizer], [torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.1)]
        return self.optimizer


class Parts(Accumulates, Net):
    pass


def fit(model, tmp_path, batch=16, checkpoint=None, **options):
    lightning.seed_everything(3, verbose=False)
    options = {"max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False, **options}
    trainer = lightning.Trainer(default_root_dir=tmp_path, accelerator="cpu", log_every_n_steps=1, **options)
    trainer.fit(model, DataLoader(TensorDataset(X, Y), batch_size=batch), ckpt_path=checkpoint)
    return trainer


def weights(model):
    return [t.detach().clone() for t in model.network.state_dict().values()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def by_hand(model, batches, epochs=2, **options):
    """The same steps in a plain loop; each batch is a list of parts."""
    optimizer = SR2(model, L1(1e-3), eta2=0.5, **options)

    def closure(parts):
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model.network(x), y) / len(parts) for x, y in parts]
        for loss in losses:
            loss.backward()
        return sum(loss.detach() for loss in losses)

    for _ in range(epochs):
        for parts in batches:
            optimizer.step(lambda parts=parts: closure(parts))
    return optimizer


def test_it_is_the_plain_loop(tmp_path, said):
    model, plain = Net(), Net()
    fit(model, tmp_path)
    optimizer = by_hand(plain, [[part] for part in zip(X.split(16), Y.split(16), strict=True)])
    assert same(weights(model), weights(plain))
    assert model.optimizer.counts == optimizer.counts
    assert said == []


def test_accumulation_evaluates_every_batch(tmp_path, said):
    model, plain = Parts(), Net()
    fit(model, tmp_path, accumulate_grad_batches=2)
    pairs = list(zip(X.split(16), Y.split(16), strict=True))
    optimizer = by_hand(plain, [pairs[:2], pairs[2:]])
    for a, b in zip(model.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert model.optimizer.counts == optimizer.counts
    assert sum(optimizer.counts.values()) == 4
    assert said == []


def test_accumulation_without_it_is_said(tmp_path, said):
    fit(Net(), tmp_path, accumulate_grad_batches=2)
    assert [s[:36] for s in said] == ["there were gradients before this step"[:36]]


def test_clipping_is_said_and_one_that_does_nothing_is_not(tmp_path, said):
    fit(Net(), tmp_path, gradient_clip_val=1e6)
    assert said == []
    fit(Net(), tmp_path, gradient_clip_val=0.05)
    assert len(said) == 1
    assert "as clipping does" in said[0]


def test_bf16_mixed_is_seen(tmp_path, said):
    model = Net()
    fit(model, tmp_path, precision="bf16-mixed")
    assert all(model.seen)
    assert model.optimizer._watch.autocast == torch.bfloat16
    assert said == []


def test_the_monitors_show_it(tmp_path):
    logger = CSVLogger(tmp_path)
    trainer = fit(Net(), tmp_path, logger=logger, callbacks=[Monitor(), LearningRateMonitor("step")])
    assert {"sigma", "rho", "zeros"} <= set(trainer.progress_bar_metrics)
    with open(logger.experiment.metrics_file_path) as file:
        rows = list(csv.DictReader(file))
    sigmas, lrs = ([float(row[name]) for row in rows if row[name]] for name in ("sigma", "lr-SR2/pg1"))
    assert len(sigmas) == len(lrs) == 8
    assert math.isnan(lrs[0])  # not known before the first step
    assert lrs[1:] == pytest.approx([1 / sigma for sigma in sigmas[:-1]], rel=1e-5)


def test_a_scheduler_is_told_once(tmp_path, said):
    fit(Net(scheduler=True), tmp_path, max_epochs=3)
    assert len(said) == 1
    assert "a scheduler has written 'lr'" in said[0]


def test_a_run_resumes_to_the_same_bits(tmp_path):
    whole, half = Net(dropout=0.3), Net(dropout=0.3)
    end = fit(whole, tmp_path / "whole", max_epochs=4)
    fit(half, tmp_path / "half", max_epochs=2).save_checkpoint(tmp_path / "middle.ckpt")
    resumed = Net(dropout=0.3)
    last = fit(resumed, tmp_path / "half", max_epochs=4, checkpoint=tmp_path / "middle.ckpt")
    assert end.global_step == last.global_step == 16
    assert same(weights(resumed), weights(whole))
    assert remembered(resumed.optimizer.state_dict()) == remembered(whole.optimizer.state_dict())


class Validated(Net):
    """Keeps an average, and what it was validated with."""

    def __init__(self):
        super().__init__()
        self.validated = []

    def configure_optimizers(self):
        self.optimizer = SR2(self, L1(1e-3))
        return self.optimizer

    def validation_step(self, batch, batch_idx):
        self.validated.append(weights(self))
        self.log("error", float(len(self.validated)))


BATCHES = list(zip(X.split(16), Y.split(16), strict=True))


def validate(tmp_path, model, *, callback=None, **options):
    callback = callback or Averaged(lambda net: recalibrate_(net.network, BATCHES))
    options = {"val_dataloaders": DataLoader(TensorDataset(X, Y), batch_size=64)} | options
    lightning.seed_everything(3, verbose=False)
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=options.pop("max_epochs", 2),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[callback],
    )
    trainer.fit(model, DataLoader(TensorDataset(X, Y), batch_size=16), **options)
    return trainer


def test_the_average_is_validated_and_saved_and_the_run_goes_on_from_the_last_iterate(tmp_path, said):
    whole, half, plain = Validated(), Validated(), Validated()
    validate(tmp_path / "plain", plain, callback=Monitor(), max_epochs=4)
    validate(tmp_path / "whole", whole, max_epochs=4)
    assert same(weights(whole), weights(plain))  # validation has left no trace, in no batch norm either
    said.clear()  # the plain one is told of its average

    trainer = validate(tmp_path / "half", half)
    with half.optimizer.averaged():
        recalibrate_(half.network, BATCHES)
        average = weights(half)
    assert same(half.validated[-1], average)
    assert not same(average, weights(half))

    path = trainer.checkpoint_callback.best_model_path
    assert same(weights(Validated.load_from_checkpoint(path)), average)
    resumed = Validated()
    validate(tmp_path / "half", resumed, max_epochs=4, ckpt_path=path)
    assert same(weights(resumed), weights(whole))
    assert same(resumed.validated[-1], whole.validated[-1])
    assert said == []


def test_without_validation_the_average_is_saved_too_and_after_an_error_the_last_iterate_is_back(tmp_path, said):
    model = Validated()
    trainer = validate(tmp_path, model, val_dataloaders=None)
    loaded = Validated.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    assert not same(weights(loaded), weights(model))
    assert said == []

    class Fails(Validated):
        def validation_step(self, batch, batch_idx):
            if self.global_step:  # not before the first step
                raise KeyError

    plain = Validated()
    validate(tmp_path, plain, val_dataloaders=None, max_epochs=1)
    model = Fails()
    with pytest.raises(KeyError):
        validate(tmp_path, model, max_epochs=1)
    assert same(weights(model), weights(plain))


def test_processes_that_would_decide_alone_are_refused():
    model = nn.Linear(3, 1)
    trainer = types.SimpleNamespace(world_size=2, optimizers=[SR2(model, L1(1e-3))])
    with pytest.raises(ValueError, match=r"there are 2 processes.*self\.trainer\.strategy\.model"):
        Monitor().on_train_start(trainer, model)
