"""Networks: parameter counts, names, shapes, starts; a user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sr2.experiments.errors import UserError
from sr2.experiments.models import build, known


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet18", 10, 11_173_962),
        ("resnet34", 10, 21_282_122),
        ("densenet121", 10, 6_964_106),
        ("densenet201", 100, 18_285_028),
        ("densenet121", 1000, 7_978_856),  # torchvision's own counts
        ("densenet201", 1000, 20_013_928),
    ],
)
def test_parameter_counts(name: str, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        assert count(build(name, classes, (3, 32, 32))) == parameters


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_the_cnn_is_small(shape: tuple[int, int, int]) -> None:
    assert 20_000 < count(build("cnn", 10, shape)) < 60_000


@pytest.mark.parametrize("name", known())
def test_forward_and_backward(name: str) -> None:
    if name == "transformer":  # one output for each token that may come next, at every place
        x, shape = torch.randint(7, (2, 12)), (2, 12, 7)
    else:
        x, shape = torch.randn(2, 3, 32, 32), (2, 7)
    model = build(name, 7, tuple(x.shape[1:]))
    out = model(x)
    assert out.shape == shape
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 31, 40)])
@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18"])
def test_other_images(name: str, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        assert build(name, 4, shape)(torch.randn(2, *shape)).shape == (2, 4)


def test_a_transformer_does_not_see_what_comes() -> None:
    torch.manual_seed(0)
    model = build("transformer", 9, (12,))
    x = torch.randint(9, (1, 12))
    other = x.clone()
    other[0, 7:] = (other[0, 7:] + 1) % 9
    with torch.no_grad():
        one, two = model(x), model(other)
    assert torch.equal(one[0, :7], two[0, :7])
    assert not torch.allclose(one[0, 7:], two[0, 7:])


def test_what_is_no_image_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"transformer reads windows of tokens.*\(3, 8, 8\): use cnn or mlp"):
        build("transformer", 10, (3, 8, 8))
    with pytest.raises(UserError, match="densenet121 needs images of at least 29 x 29, and they are 10"):
        build("densenet121", 1, (10,))


def test_densenets_name_images_they_would_shrink_to_nothing() -> None:
    with pytest.raises(UserError, match="densenet121 needs images of at least 29 x 29, and they are 8 x 8"):
        build("densenet121", 10, (1, 8, 8))
    with torch.device("meta"):
        assert build("densenet201", 10, (1, 29, 29))(torch.randn(2, 1, 29, 29)).shape == (2, 10)


def test_densenet_names_are_torchvisions() -> None:
    with torch.device("meta"):
        state = build("densenet121", 10, (3, 32, 32)).state_dict()
    assert len(state) == 727  # as many as torchvision's densenet121 has, buffers included
    expected = {
        "features.conv0.weight": (64, 3, 7, 7),
        "features.norm0.running_var": (64,),
        "features.denseblock1.denselayer1.norm1.weight": (64,),
        "features.denseblock1.denselayer1.conv1.weight": (128, 64, 1, 1),
        "features.denseblock1.denselayer1.norm2.num_batches_tracked": (),
        "features.denseblock1.denselayer6.conv2.weight": (32, 128, 3, 3),
        "features.transition1.norm.bias": (256,),
        "features.transition1.conv.weight": (128, 256, 1, 1),
        "features.denseblock4.denselayer16.norm1.weight": (992,),
        "features.norm5.weight": (1024,),
        "classifier.weight": (10, 1024),
        "classifier.bias": (10,),
    }
    for name, shape in expected.items():
        assert tuple(state[name].shape) == shape, name
    assert not any("transition4" in name for name in state)


def test_resnet_names_are_torchvisions() -> None:
    with torch.device("meta"):
        model = build("resnet34", 10, (3, 32, 32))
    state = model.state_dict()
    expected = {
        "conv1.weight": (64, 3, 3, 3),
        "bn1.weight": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer1.2.bn2.running_mean": (64,),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.bias": (128,),
        "layer4.2.conv2.weight": (512, 512, 3, 3),
        "fc.weight": (10, 512),
    }
    for name, shape in expected.items():
        assert tuple(state[name].shape) == shape, name
    assert "layer1.0.downsample.0.weight" not in state
    out: list[torch.Size] = []
    model.layer1.register_forward_hook(lambda module, args, result: out.append(result.shape))  # type: ignore[union-attr]
    model(torch.randn(1, 3, 32, 32, device="meta"))
    assert out == [torch.Size([1, 64, 32, 32])]  # the CIFAR stem neither strides nor pools


def test_resnets_start_as_torch_layers_do_and_densenets_as_torchvisions() -> None:
    torch.manual_seed(0)
    resnet = build("resnet18", 10, (3, 32, 32)).state_dict()
    bound = (256 * 9) ** -0.5
    assert resnet["layer3.1.conv1.weight"].abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert resnet["layer3.1.conv1.weight"].std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
    densenet = build("densenet121", 10, (3, 32, 32)).state_dict()
    weight = densenet["features.denseblock3.denselayer9.conv1.weight"]
    assert weight.std().item() == pytest.approx((2 / weight.shape[1]) ** 0.5, rel=0.05)  # fan in
    assert not densenet["classifier.bias"].any()
    for state in (resnet, densenet):
        norms = [name[: -len(".running_mean")] for name in state if name.endswith("running_mean")]
        assert all((state[f"{name}.weight"] == 1).all() and not state[f"{name}.bias"].any() for name in norms)


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18"])
def test_a_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [p.detach() for p in build(name, 10, (1, 8, 8)).parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(1), weights(2), strict=True))


def test_unknown_names_list_the_known_and_the_closest() -> None:
    with pytest.raises(UserError, match=r"unknown network 'resnet43': did you mean resnet34\?.*cnn, mlp, resnet18"):
        build("resnet43", 10, (3, 32, 32))


# ---- a user's own

MODULE = """
from torch import nn
def plain(): return nn.Linear(2, 3)
def by_classes(num_classes): return nn.Linear(2, num_classes)
def by_keywords(*, weights=None, **kwargs): return nn.Linear(2, kwargs["num_classes"])
def by_both(classes, in_shape): return nn.Linear(in_shape[0], classes)
def needs(width): return nn.Linear(2, width)
def nothing(): return None
"""


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"net_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("name", "shape"), [("plain", (3, 2)), ("by_classes", (5, 2)), ("by_keywords", (5, 2)), ("by_both", (5, 1))]
)
def test_own_network(name: str, shape: tuple[int, int], my_module: str) -> None:
    model = build(f"{my_module}:{name}", 5, (1, 8, 8))
    assert next(model.parameters()).shape == shape


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("needs", "was called .*: .* missing 1 required positional argument: 'width'; give the rest defaults"),
        ("nothing", r"returned a NoneType, and must return a torch\.nn\.Module"),
        ("absent", "could not be imported"),
    ],
)
def test_own_network_that_is_wrong(name: str, words: str, my_module: str) -> None:
    with pytest.raises(UserError, match=words):
        build(f"{my_module}:{name}", 5, (1, 8, 8))


def test_a_module_is_named_without_its_ending(my_module: str) -> None:
    with pytest.raises(UserError, match=r"a module is named without \.py"):
        build(f"{my_module}.py:plain", 5, (1, 8, 8))
