"""Hugging Face's Trainer passes no closure: SR2 steps on the batches that were kept, and resumes to the same bits."""

import math
import sys
from pathlib import Path

import pytest
import torch

from sr2 import L1, NM, SR2, L0Ball, param_groups, sparsity
from sr2.schedules import Cooldown

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from sr2.trainers.huggingface import SR2Trainer  # noqa: E402
from tests.tools import remembered  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "trainers"))
from huggingface_bert import bert, sentences  # noqa: E402


class Recorded(SR2Trainer):
    """It keeps what it was given, for a plain loop to train on."""

    loss_is_scaled_for_ga = False  # BERT's own loss takes no notice of num_items_in_batch

    def training_step(self, model, inputs, *others):
        self.__dict__.setdefault("batches", []).append(self._prepare_inputs(dict(inputs)))
        return super().training_step(model, inputs, *others)


def made(folder, model=None, count=64, steps=8, sigma="auto", **options):
    given = {"per_device_train_batch_size": 8, "max_steps": steps, "logging_steps": 1, "save_strategy": "no", **options}
    arguments = transformers.TrainingArguments(str(folder), report_to=[], disable_tqdm=True, use_cpu=True, **given)
    return Recorded(
        model or without_dropout(),
        arguments,
        train_dataset=sentences(count),
        regularizer=L1(1e-4),
        sr2={"eta2": 0.5, "sigma": sigma},
    )


def without_dropout():
    model = bert()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_it_is_the_plain_loop(tmp_path, said):
    trainer, plain = made(tmp_path), without_dropout()
    trainer.train()
    optimizer = SR2(plain, L1(1e-4), eta2=0.5)
    for batch in trainer.batches:
        optimizer.step(lambda batch=batch: plain(**batch).loss)
    assert len(trainer.batches) == sum(optimizer.counts.values()) == 8
    assert same(weights(trainer.model), weights(plain))
    assert said == []


def test_accumulation_is_one_step_on_all_parts(tmp_path, said):
    """Four batches of 4 make the step that one of 16 makes."""
    whole = made(tmp_path, steps=3, sigma=1.0, per_device_train_batch_size=16)
    parts = made(tmp_path, steps=3, sigma=1.0, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    whole.train()
    parts.train()
    assert (len(whole.batches), len(parts.batches)) == (3, 12)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-4)
    assert parts._sr2.counts == whole._sr2.counts
    assert parts.state.log_history[0]["loss"] == pytest.approx(whole.state.log_history[0]["loss"], rel=1e-4)
    assert said == []


@pytest.mark.parametrize(
    ("options", "schedule", "decay"),
    [
        ({}, Cooldown(17, 24), 0.0036),  # three epochs of eight steps
        ({"sigma": 100.0, "weight_decay": 0.1}, Cooldown(17, 24), None),
        ({"steps": 1000}, Cooldown(700, 1000), 0.0036),
        ({"eta2": 0.5}, None, None),
    ],
    ids=str,
)
def test_it_tells_how_long_the_run_is(tmp_path, options, schedule, decay):
    model = without_dropout()
    size = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1])
    trainer = made(tmp_path, model, steps=-1, num_train_epochs=3)
    trainer._options, trainer._regularizer = options, NM(2, 4)
    trainer.train()
    assert trainer._sr2.schedule == schedule
    assert (trainer._sr2.reach is None) == (schedule is None)
    if decay is not None:
        expected = decay / (math.sqrt(math.pi / 2) * float(size[size != 0].abs().mean()))
        assert trainer._sr2.param_groups[0]["weight_decay"] == pytest.approx(expected, rel=1e-5)
    if options == {}:
        assert sparsity(trainer.model.bert.encoder).fraction > 0.45


def test_the_average_is_evaluated_and_saved(tmp_path, said):
    model = without_dropout()
    options = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "max_steps": 8, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=8, **options)
    data = sentences(64)
    trainer = SR2Trainer(model, arguments, train_dataset=data, eval_dataset=data, regularizer=L0Ball(density=0.5))
    with pytest.raises(RuntimeError, match=r"call trainer.train\(\) first"):
        trainer.averaged()
    trainer.train()
    last, zeros = weights(model), sparsity(model).zeros
    with trainer.averaged():
        loss, average = trainer.evaluate()["eval_loss"], weights(model)
        trainer.save_model(str(tmp_path / "network"))
    assert same(weights(model), last)
    assert not same(average, last)
    assert loss != trainer.evaluate()["eval_loss"]
    saved = type(model).from_pretrained(tmp_path / "network")
    assert same(weights(saved), average)
    assert sparsity(saved).zeros == zeros > 0
    assert said == []


def test_the_log_has_the_inverse_of_sigma(tmp_path):
    trainer = made(tmp_path)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "learning_rate" in row]
    assert len(rows) == 8
    assert rows[-1]["learning_rate"] == pytest.approx(1 / trainer._sr2.sigma)


def test_bf16_is_seen(tmp_path, said):
    trainer = made(tmp_path, steps=3, bf16=True)
    trainer.train()
    assert trainer._sr2._watch.autocast == torch.bfloat16
    assert said == []


@pytest.mark.parametrize("dropout", [False, True])
def test_a_run_resumes_to_the_same_bits(tmp_path, dropout):
    build = bert if dropout else without_dropout
    whole = made(tmp_path / "whole", build(), steps=12)
    whole.train()
    made(tmp_path / "half", build(), steps=12, save_strategy="steps", save_steps=6).train()
    resumed = made(tmp_path / "half", build(), steps=12)
    resumed.train(resume_from_checkpoint=str(tmp_path / "half" / "checkpoint-6"))
    assert whole.state.global_step == resumed.state.global_step == 12
    assert same(weights(whole.model), weights(resumed.model))
    assert remembered(whole._sr2.state_dict()) == remembered(resumed._sr2.state_dict())


def test_rules_of_param_groups(tmp_path):
    trainer = made(tmp_path, steps=2)
    trainer._regularizer = [("*encoder*weight", L1(1e-3)), ("*", None)]
    trainer.train()
    expected = param_groups(trainer.model, trainer._regularizer)
    assert [g["regularizer"] for g in trainer._sr2.param_groups] == [g["regularizer"] for g in expected]
