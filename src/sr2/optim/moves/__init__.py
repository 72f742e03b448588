"""(x, v, D) -> x + s and back: one protocol (`base`), the ways behind it, and one place that chooses (`choose`)."""
