"""The names of the operations and the types of the layers that `shrink` knows, by what they do to channels."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

_POOLS = [f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for d in (1, 2, 3)]

ELEMENTWISE = {
    *("relu", "relu_", "relu6", "gelu", "silu", "sigmoid", "tanh", "hardtanh", "leaky_relu", "leaky_relu_", "elu"),
    *("elu_", "selu", "celu", "softplus", "mish", "hardswish", "hardsigmoid", "softsign", "logsigmoid", "dropout"),
    *("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "neg", "abs", "exp", "log"),
    *("sqrt", "rsqrt", "square", "clamp", "clamp_", "clip", "pow", "contiguous", "clone", "detach", "float", "double"),
    *("to", "hardshrink", "softshrink", "tanhshrink", "threshold", "rrelu", "sin", "cos", "reciprocal"),
}
"""One entry in, the same entry out."""
PAIRWISE = {
    *(
        "add",
        "add_",
        "iadd",
        "sub",
        "sub_",
        "isub",
        "rsub",
        "mul",
        "mul_",
        "imul",
        "div",
        "div_",
        "truediv",
        "itruediv",
    ),
    *("maximum", "minimum", "masked_fill", "where"),
}
"""Entries of several tensors that meet in one: their channels go together."""
MOVING = {
    *("permute", "transpose", "swapaxes", "movedim", "unsqueeze", "squeeze", "t", "flatten", "cat", "concat", "stack"),
    *("unbind", "split", "expand", "expand_as"),
}
"""Entries change their place and nothing else."""
MIXING = {"softmax", "log_softmax", "layer_norm", "rms_norm", "normalize", "group_norm", "mean", "sum", "amax", "amin"}
"""All entries along some axes meet."""
SPATIAL = {*_POOLS, "interpolate", "pad"}
"""The channels of axis 1 do not meet."""
ASKING = {"size", "dim", "numel", "getattr"}
ATTRIBUTES = {"shape", "ndim", "device", "dtype", "is_cuda", "requires_grad"}

ELEMENTWISE_LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU),
    *(nn.Softplus, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.LogSigmoid, nn.Identity, nn.Hardshrink),
    *(nn.Softshrink, nn.Tanhshrink, nn.Threshold, nn.RReLU),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
)
SPATIAL_LAYERS: tuple[type[nn.Module], ...] = (
    *(getattr(nn, f"{kind}Pool{d}d") for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax") for d in (1, 2, 3)),
    *(getattr(nn, f"{kind}Pad{d}d") for kind in ("Zero", "Constant", "Reflection", "Replication") for d in (1, 2, 3)),
    nn.Upsample,
)
MIXING_LAYERS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Softmax, nn.LogSoftmax)
CHANNELWISE_LAYERS = (_BatchNorm, _InstanceNorm, nn.PReLU)
OTHER_LAYERS = (
    *(nn.Linear, _ConvNd, nn.Embedding, nn.Flatten, nn.MultiheadAttention),
    *(nn.TransformerEncoderLayer, nn.TransformerEncoder),
)
LAYERS = (*ELEMENTWISE_LAYERS, *SPATIAL_LAYERS, *MIXING_LAYERS, *CHANNELWISE_LAYERS, *OTHER_LAYERS)
