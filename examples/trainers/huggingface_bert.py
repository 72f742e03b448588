"""SR2 in Hugging Face's Trainer, in five lines; the model has random weights, and nothing is downloaded.

python examples/trainers/huggingface_bert.py
"""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from sr2 import L1, sparsity
from sr2.trainers.huggingface import SR2Trainer


def sentences(count=256, length=12, words=50):
    """Sequences of words; the label is whether word 1 comes in them."""
    ids = torch.randint(2, words, (count, length), generator=torch.Generator().manual_seed(0))
    ids[::2, 3] = 1
    return [{"input_ids": row, "labels": int((row == 1).any())} for row in ids]


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **sizes))


def main(folder):
    model = bert()
    settings = TrainingArguments(folder, num_train_epochs=15, per_device_train_batch_size=32, logging_steps=16)
    trainer = SR2Trainer(model, settings, train_dataset=sentences(), regularizer=L1(1e-5))
    trainer.train()
    print(f"loss {trainer.state.log_history[0]['loss']:.3f}, then {trainer.state.log_history[-2]['loss']:.3f}")
    print(f"{100 * sparsity(model).fraction:.1f} % of the weights are zero")
    with trainer.averaged():  # often the better network
        trainer.save_model(folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
