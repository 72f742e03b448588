"""Train a small network on the handwritten digits that scikit-learn carries, under l0: many weights end at exactly 0.

python examples/quickstart.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from sr2 import L0, SR2, sparsity

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(images))
x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
x, x_test, y, y_test = x[:1400], x[1400:], y[:1400], y[1400:]

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = SR2(model, L0(1e-3))  # no learning rate: sigma adapts

for epoch in range(1, 21):
    for batch in torch.randperm(len(x)).split(100):
        loss = optimizer.step(lambda b=batch: nn.functional.cross_entropy(model(x[b]), y[b]))
    if epoch % 5 == 0:
        with optimizer.averaged():  # the average of the iterates, with the same zeros
            accuracy = (model(x_test).argmax(1) == y_test).double().mean()
        print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {100 * accuracy:.1f} %, sigma {optimizer.sigma:.3g}")

print(sparsity(model))
