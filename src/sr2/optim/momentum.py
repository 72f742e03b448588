"""v_t: the direction, a bias-corrected average of the gradients. On CUDA `fused.py` does the same in its kernel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .metrics import State, ema


def direction(gs: Sequence[Tensor], states: Sequence[State], momentum: float) -> tuple[list[Tensor], list[State]]:
    """v_t = m_t / (1 - beta^t),  m_t = beta m_{t-1} + (1 - beta) g_t; and the states that hold m_t.

    Nothing is written, so that a step which is called off leaves no trace.
    """
    vs, news = [], []
    for g, state in zip(gs, states, strict=True):
        m = ema(state.get("momentum"), g, momentum)
        weight = momentum * state.get("momentum_weight", 0.0) + (1 - momentum)
        vs.append(m / weight)
        news.append({"momentum": m, "momentum_weight": weight})
    return vs, news
