"""2:4 sparsity on an NVIDIA GPU: linear layers and whole GPTs against their dense bfloat16 selves, honest where slower.

    PYTHONPATH=src python benchmarks/semi_structured.py --out semi_structured.json
    PYTHONPATH=src python benchmarks/semi_structured.py --rehearse      # the same code, tiny and dense, on the CPU

The weights are random and projected by NM(2, 4): speed does not depend on their values. Every time is the median of
interleaved timings; "eager" calls the module, "graph" replays a CUDA graph of the call, which takes away the launches.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sr2 import NM
from sr2.export import semi_structured
from sr2.export.measure import milliseconds, table
from sr2.export.semi_structured import converted

LAYERS = [(384, 384), (1152, 384), (1536, 384), (384, 1536), (2048, 2048), (4096, 4096), (16384, 4096), (4096, 16384)]
"""Rows and columns; the first four are those of the small GPT."""
TOKENS = [1, 64, 1024, 8192]
GPTS = {"10 M": (384, 6, 6), "200 M": (1024, 16, 16), "800 M": (2048, 16, 16)}
"""Width, blocks, heads."""
BATCHES = [1, 8, 32]
CONTEXT, VOCABULARY = 256, 64


class Block(nn.Module):
    """LayerNorm, causal attention, LayerNorm, an MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a linear head that stays dense."""

    def __init__(self, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


def project_(model: nn.Module) -> None:
    """Two of every four weights of a row become zero, in every linear layer but the head."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name != "head":
                module.weight.copy_(NM(2, 4).prox(module.weight, 1.0))


def as_graph(body: Callable[[], object], device: torch.device) -> Callable[[], object] | None:
    """The call as a CUDA graph; None where it cannot be one."""
    if device.type != "cuda":
        return None
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        return graph.replay
    except RuntimeError as error:
        print(f"no graph: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
        return None


def compare(dense: nn.Module, sparse: nn.Module, x: Tensor) -> dict[str, Any]:
    """Times of both, eager and as graphs, and how far the outputs are apart relative to the largest."""
    with torch.no_grad():
        a, b = dense(x).float(), sparse(x).float()
        row: dict[str, Any] = {"error": ((a - b).abs().max() / a.abs().max()).item()}
        bodies: dict[str, Callable[[], object]] = {"dense": lambda: dense(x), "2:4": lambda: sparse(x)}
        row["eager"] = dict(zip(bodies, milliseconds(*bodies.values()), strict=True))
        graphs = {name: as_graph(body, x.device) for name, body in bodies.items()}
        row["graph"] = None
        if all(graph is not None for graph in graphs.values()):
            row["graph"] = dict(zip(graphs, milliseconds(*graphs.values()), strict=True))  # type: ignore[arg-type]
    return row


def time_layers(device: torch.device, convert: Callable[[nn.Module], nn.Module], tiny: bool) -> list[dict[str, Any]]:
    """Every shape with every number of tokens."""
    rows = []
    for outputs, inputs in LAYERS[:1] if tiny else LAYERS:
        dense = nn.Linear(inputs, outputs)
        with torch.no_grad():
            dense.weight.copy_(NM(2, 4).prox(dense.weight, 1.0))
        dense = dense.to(device, torch.bfloat16)
        sparse = convert(dense)
        for tokens in TOKENS[:2] if tiny else TOKENS:
            x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
            rows.append({"rows": outputs, "columns": inputs, "tokens": tokens, **compare(dense, sparse, x)})
    return rows


def time_gpts(device: torch.device, convert: Callable[..., nn.Module], tiny: bool) -> list[dict[str, Any]]:
    """Whole networks: all layers converted, and only those that a measurement chooses."""
    rows = []
    for name, (width, blocks, heads) in {"tiny": (64, 1, 2)}.items() if tiny else GPTS.items():
        dense = GPT(width, blocks, heads)
        project_(dense)
        dense = dense.to(device, torch.bfloat16).eval()
        count = sum(p.numel() for p in dense.parameters())
        for batch in BATCHES[:1] if tiny else BATCHES:
            tokens = torch.randint(0, VOCABULARY, (batch, CONTEXT), device=device)
            for choice in ("all", "measured"):
                sparse = convert(dense, tokens if choice == "measured" else None)
                report = getattr(sparse, "semi_structured", None)
                swapped = sum(row.converted for row in report.layers) if report is not None else 0
                row = {"gpt": name, "parameters": count, "batch": batch, "layers": choice, "converted": swapped}
                rows.append({**row, **compare(dense, sparse, tokens)})
                del sparse
    return rows


def ratios(row: dict[str, Any]) -> list[str]:
    """dense ms, 2:4 ms and their ratio, eager and as a graph."""
    cells = []
    for kind in ("eager", "graph"):
        times = row[kind]
        cells += (
            [f"{times['dense']:.4f}", f"{times['2:4']:.4f}", f"{times['dense'] / times['2:4']:.2f}"]
            if times
            else ["-", "-", "-"]
        )
    return [*cells, f"{row['error']:.1e}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--rehearse", action="store_true", help="tiny, dense, on the CPU: does the code run?")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        print("this needs an NVIDIA GPU: try --rehearse for a run without one", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    device = torch.device("cpu" if options.rehearse else "cuda")
    convert_layer: Callable[[nn.Module], nn.Module] = copy.deepcopy if options.rehearse else converted
    start = time.perf_counter()
    layers = time_layers(device, convert_layer, options.rehearse)
    gpts = time_gpts(
        device,
        lambda model, x: copy.deepcopy(model) if options.rehearse else semi_structured(model, x, verbose=False),
        options.rehearse,
    )
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, rehearsal: nothing is sparse"
    head = ["dense ms", "2:4 ms", "ratio", "dense graph", "2:4 graph", "ratio", "error"]
    print(f"{where}, torch {torch.__version__}, {time.perf_counter() - start:.0f} s")
    print(table([["layer", "tokens", *head]] + [
        [f"{r['rows']} x {r['columns']}", str(r["tokens"]), *ratios(r)] for r in layers
    ]))  # fmt: skip
    print(table([["gpt", "batch", "layers", "converted", *head]] + [
        [r["gpt"], str(r["batch"]), r["layers"], str(r["converted"]), *ratios(r)] for r in gpts
    ]))  # fmt: skip
    best = statistics.median(r["eager"]["dense"] / r["eager"]["2:4"] for r in layers)
    print(f"median ratio of the layers, eager: {best:.2f}")
    if options.out is not None:
        figures = {"device": where, "torch": torch.__version__, "layers": layers, "gpts": gpts}
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
