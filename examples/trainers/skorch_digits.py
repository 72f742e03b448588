"""SR2 in skorch, which hands the optimizer a closure already: only how the optimizer is made is one's own.

python examples/trainers/skorch_digits.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from sr2 import L1, SR2, sparsity


class SparseClassifier(NeuralNetClassifier):
    def initialize_optimizer(self):
        self.optimizer_ = SR2(self.module_, L1(1e-3))  # the module itself: its buffers are protected
        return self


def network():
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def main():
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x.astype("float32") / 16, y, random_state=0)
    net = SparseClassifier(network, criterion=nn.CrossEntropyLoss, max_epochs=10, train_split=None, verbose=0)
    net.fit(x, y)
    print(f"accuracy {100 * net.score(x_test, y_test):.1f} %, lr {net.optimizer_.param_groups[0]['lr']:.3g}")
    print(f"{100 * sparsity(net.module_).fraction:.1f} % of the weights are zero")


if __name__ == "__main__":
    main()
