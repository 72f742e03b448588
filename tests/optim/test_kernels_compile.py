"""The Triton kernels compile to machine code of sm_90 (H100, H200), without a GPU: the interpreter forgives more."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sr2.optim.moves import fused
from sr2.optim.moves import kernels as fused_kernels
from sr2.regularizers import selection, selection_kernels

KINDS = {"sizes": "*i64", "pointers": "*i64", "chunk_start": "*i64", "chunk_tensor": "*i32", "m_newest": "fp32"}
KINDS |= {"q_newest": "fp32", "eps": "fp32"}
KINDS |= {"tensors": "i32", "chunks": "i32", "first_flag": "*i1", "other_flag": "*i1"}
KINDS |= {f"{name}_out": "*i1" for name in ("accepted", "null", "sound", "learns", "failed")}
KINDS |= {f"{name}_count": "*i64" for name in ("accepted", "rejected", "null", "broken", "untested")}
KINDS |= {"HOLDS": "i32", "TESTED": "i32", "slots": "*i32", "starts": "*i64", "scores": "*fp32"}
KINDS |= {name: "*i32" for name in ("nonzeros", "least", "ends", "bits", "owner", "counts", "firsts", "floors")}
KINDS |= {name: "*i32" for name in ("above", "common", "ties", "first_runs")}
KINDS |= {"exceeded": "*i1", "ks": "*i64", "seen": "*i64", "vectors": "i32", "groups": "i32"}
SIZES = {"CHUNK": fused.CHUNK, "BLOCK": fused.BLOCK}


def compiled(kernel, losses="*fp64", warps=fused.WARPS, **constants):
    kinds = {"loss_pointer": losses, "trial_pointer": losses} | KINDS
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp64") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm


def compiles(kernel, **given):
    return bool(compiled(kernel, **given)["cubin"])


def wide_accesses(kernel, **given):
    # how often the whole blocks are read and written, 16 bytes at a time per thread
    ptx = compiled(kernel, **given)["ptx"]
    return tuple(len(re.findall(rf"{kind}\\.global\\S*\\.v4\\.b32", ptx)) for kind in ("ld", "st"))


assert compiles(fused_kernels.decide, losses="*fp32")
assert compiles(fused_kernels.decide, losses="*fp64")
assert wide_accesses(fused_kernels.copy_if, WANTED=0, FIRST=0, END=3, **SIZES) == (3, 3)
assert wide_accesses(fused_kernels.copy_if, WANTED=1, FIRST=0, END=1, **SIZES) == (1, 1)
assert wide_accesses(fused_kernels.toward, **SIZES) == (2, 1)
for momentum, metric, decay in ((0, 0, 0), (0, 1, 1), (1, 1, 0)):
    for kind in (fused.MOVE, fused.SCORE, fused.MOVE_CHOSEN) if metric else (fused.MOVE,):
        of = {"MOMENTUM": bool(momentum), "METRIC": bool(metric), "DECAY": bool(decay), "PASS": kind}
        read = 2 + momentum + metric  # x, g, m, q
        written = 2 * (momentum + metric) + 1 + (not decay)  # m, q and what they were, x and what it was
        if kind == fused.SCORE:  # where scores lie, which are all it writes, only a launch tells
            written = 0
        found = wide_accesses(fused_kernels.move, **of, KEEPS=not decay, RETURNS=4.0, **SIZES)
        assert found == (read, written), (of, found)
for row, (shift, bits) in enumerate(selection.DIGITS):
    few = row >= selection.FULL
    assert compiles(selection_kernels.count_digits, FEW=few, SHIFT=shift, BITS=bits, RUN=selection.RUN)
    assert compiles(selection_kernels.next_digit, warps=8, SHIFT=shift, BITS=bits, ROWS=selection.TABLE >> bits)
assert compiles(selection_kernels.count_ties, RUN=selection.RUN)
assert compiles(selection_kernels.find_ends, warps=8, RUN=selection.RUN, BLOCK=selection.BLOCK)
print("compiled")
"""


def test_the_kernels_compile_for_an_h200_and_access_16_bytes_at_a_time(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    path = tmp_path / "kernels.py"  # Triton reads the source of what it compiles
    path.write_text(SCRIPT)
    run = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=300)
    assert run.stdout == "compiled\n", run.stderr
