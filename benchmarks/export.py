"""What zeros buy on this CPU: bytes of files, channels, milliseconds. The figures of docs/export.md.

    OMP_NUM_THREADS=1 python benchmarks/export.py --out export.json

ResNet-18 for 32 x 32 images, random weights. "Unstructured" zeros are random. "Filters" are zeroed by hand: of each
block the half of the inner filters with the smallest norm ("inside"), or that and half of the channels of the residual
stream of each stage ("everywhere"), with their batch norms. Speed does not depend on how the zeros came.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sr2.experiments.models import build
from sr2.export import save, shrink, sparse_layers, to_onnx
from sr2.export.measure import milliseconds, table

SHAPE = (3, 32, 32)


def resnet18() -> Any:
    torch.manual_seed(0)
    return build("resnet18", 10, SHAPE).eval()


def unstructured(zeros: float) -> nn.Module:
    """Random zeros in every convolution and linear layer."""
    model: nn.Module = resnet18()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.weight.masked_fill_(torch.rand_like(module.weight) < zeros, 0.0)
    return model


def smaller_half(weight: Tensor) -> Tensor:
    norms = weight.flatten(1).norm(dim=1)
    return norms < norms.median() if len(norms) % 2 else norms.argsort().argsort() < len(norms) // 2


def kill(dead: Tensor, *layers: nn.Module) -> None:
    """The filters of a convolution, the scale and shift of a batch norm."""
    with torch.no_grad():
        for layer in layers:
            for tensor in layer.parameters():
                tensor[dead] = 0


def filters(everywhere: bool) -> nn.Module:
    """Half of the filters of each block, and of each stage's stream if `everywhere`."""
    model = resnet18()
    for number, stage in enumerate((model.layer1, model.layer2, model.layer3, model.layer4)):
        for block in stage:
            kill(smaller_half(block.conv1.weight), block.conv1, block.bn1)
        if everywhere:
            dead = smaller_half(stage[0].conv2.weight)
            if number == 0:
                kill(dead, model.conv1, model.bn1)
            for block in stage:
                kill(dead, block.conv2, block.bn2, *(block.downsample or ()))
    return model


def files() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for zeros in (0.5, 0.9, 0.95, 0.99):
            model = unstructured(zeros)
            dense = 4 * sum(p.numel() for p in model.parameters())
            size = save(model, Path(folder) / "w")
            half = save(model, Path(folder) / "w", dtype=torch.bfloat16)
            rows.append({"zeros": zeros, "dense": dense, "bytes": size, "bfloat16": half})
    return rows


def shrunk() -> list[dict[str, Any]]:
    rows = []
    for name, everywhere in (("inside", False), ("everywhere", True)):
        model = filters(everywhere)
        for batch in (1, 64):
            x = torch.randn(batch, *SHAPE)
            small = shrink(model, x, verbose=False)
            report = small.shrunk
            row = {"filters": name, "batch": batch, "error": report.error, "padded": report.padded}
            rows.append(row | {k: getattr(report, k) for k in ("channels", "parameters", "macs", "milliseconds")})
    return rows


def sparse() -> list[dict[str, Any]]:
    rows = []
    for zeros in (0.9, 0.95, 0.99):
        model = unstructured(zeros)
        for batch in (1, 64):
            x = torch.randn(batch, *SHAPE)
            fast = sparse_layers(model, x, verbose=False)
            with torch.no_grad():
                before, after = milliseconds(lambda m=model, x=x: m(x), lambda m=fast, x=x: m(x))
            swapped = sum(row.swapped for row in fast.sparse_layers.layers)
            rows.append({"zeros": zeros, "batch": batch, "swapped": swapped, "milliseconds": (before, after)})
    return rows


def onnx_files() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("dense", resnet18()), ("everywhere", filters(True))):
            report = to_onnx(model, torch.zeros(1, *SHAPE), Path(folder) / "m.onnx")
            rows.append({"network": name, "bytes": report.bytes, "error": report.error})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    figures: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    figures["files"] = rows = files()
    head = [["zeros", "dense float32", "bytes", "ratio", "bfloat16", "ratio"]]
    print(table(head + [
        [f"{r['zeros']:.0%}", f"{r['dense']:,}", f"{r['bytes']:,}", f"{r['dense'] / r['bytes']:.1f}",
         f"{r['bfloat16']:,}", f"{r['dense'] / r['bfloat16']:.1f}"] for r in rows
    ]))  # fmt: skip
    figures["shrink"] = rows = shrunk()
    head = [["filters", "batch", "parameters", "MACs", "ms before", "ms after", "ratio", "error"]]
    print(table(head + [
        [r["filters"], str(r["batch"]), "{:,} -> {:,}".format(*r["parameters"]), "{:,} -> {:,}".format(*r["macs"]),
         *(f"{ms:.2f}" for ms in r["milliseconds"]), "{:.2f}".format(r["milliseconds"][0] / r["milliseconds"][1]),
         f"{r['error']:.0e}"] for r in rows
    ]))  # fmt: skip
    figures["sparse_layers"] = rows = sparse()
    head = [["zeros", "batch", "swapped", "ms before", "ms after", "ratio"]]
    print(table(head + [
        [f"{r['zeros']:.0%}", str(r["batch"]), str(r["swapped"]), *(f"{ms:.2f}" for ms in r["milliseconds"]),
         "{:.2f}".format(r["milliseconds"][0] / r["milliseconds"][1])] for r in rows
    ]))  # fmt: skip
    figures["onnx"] = rows = onnx_files()
    print(table([["onnx", "bytes", "error"]] + [[r["network"], f"{r['bytes']:,}", f"{r['error']:.0e}"] for r in rows]))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
