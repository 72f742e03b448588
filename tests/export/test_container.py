"""save and load: to the bit for every type and layout, as small as promised, and deaf to damaged and hostile files."""

import json
import struct
import zlib

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from sr2.export import load, save
from sr2.export.container import FORMAT, VERSION

KINDS = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
    ),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
]


def bits(tensor):
    """The bytes in row-major order: what must come back."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def sparse(shape, zeros, kind=torch.float32, seed=0):
    """Random bytes of a type, the given share of them zero."""
    generator = np.random.default_rng(seed)
    count = int(np.prod(shape))
    raw = generator.integers(0, 2 if kind == torch.bool else 256, (count, kind.itemsize), dtype=np.uint8)
    raw[generator.random(count) < zeros] = 0
    return torch.from_numpy(raw.reshape(-1)).view(kind).view(shape)


LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1),
    "every other": lambda t: t[::2],
    "expanded": lambda t: t[:1].expand(3, *t.shape[1:]),
    "channels last": lambda t: t.to(memory_format=torch.channels_last) if t.ndim == 4 else t,
    "reversed axes": lambda t: t.permute(*reversed(range(t.ndim))),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=12, deadline=None)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6),
    zeros=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    layout=st.sampled_from(list(LAYOUTS)),
    seed=st.integers(0, 99),
)
def test_round_trips_to_the_bit(kind, shape, zeros, layout, seed, tmp_path_factory):
    big = sparse((40, 50), 0.97, kind, seed)  # this one is worth a bitmask in most types
    small = sparse(shape, zeros, kind, seed)
    small = LAYOUTS[layout](small) if small.numel() and small.ndim > 1 else small
    path = tmp_path_factory.mktemp("file") / "w"
    save({"big": big, "small.": small, "one": sparse((), 0.5, kind, seed)}, path)
    back = load(path)
    assert back["small."].shape == small.shape
    assert back["small."].dtype == back["big"].dtype == kind
    assert bits(back["small."]) == bits(small)
    assert bits(back["big"]) == bits(big)
    assert back["one"].shape == ()


def test_minus_zero_nan_and_infinity_survive(tmp_path):
    w = torch.zeros(1000)
    w[[3, 500, 999, 7]] = torch.tensor([-0.0, float("nan"), float("-inf"), 1e-45])
    save({"w": w}, tmp_path / "w")
    assert len(safetensors.torch.load_file(tmp_path / "w")["w.compressed"]) == 4
    assert bits(load(tmp_path / "w")["w"]) == bits(w)


def test_the_signs_of_zeros_are_kept_unless_a_mask_made_them(tmp_path):
    torch.manual_seed(0)
    few, masked = torch.zeros(10000), torch.randn(10000) * (torch.rand(10000) < 0.01)
    few[::100] = -0.0
    assert torch.signbit(masked).sum() > 4000
    save({"few": few, "masked": masked, "small": masked[:500]}, tmp_path / "w")
    back = load(tmp_path / "w")
    assert bits(back["few"]) == bits(few)
    assert bits(back["small"]) == bits(masked[:500])
    assert torch.equal(back["masked"], masked)
    assert (tmp_path / "w").stat().st_size < 6000


@pytest.mark.parametrize(("zeros", "least"), [(0.95, 12), (0.99, 50)])
def test_as_small_as_promised(tmp_path, zeros, least):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 256, 3), nn.Conv2d(256, 128, 3), nn.Linear(512, 100))
    for p in model.parameters():
        p.data.mul_(torch.rand_like(p) >= zeros)
    dense = 4 * sum(p.numel() for p in model.parameters())
    assert save(model, tmp_path / "w") * least <= dense
    assert (tmp_path / "w").stat().st_size * least <= dense


def test_a_dense_tensor_costs_nothing(tmp_path):
    w = torch.randn(1000, 100)
    assert save({"w": w}, tmp_path / "w") < w.nbytes + 400
    assert list(safetensors.torch.load_file(tmp_path / "w")) == ["w"]


def test_ten_lines_of_numpy_read_it(tmp_path):
    w = sparse((30, 40), 0.98).nan_to_num()
    save({"w": w, "bias": torch.ones(3)}, tmp_path / "w")
    from safetensors.numpy import load_file

    stored = load_file(tmp_path / "w")
    packed = (
        stored["w.bitmask"]
        if "w.bitmask" in stored
        else np.frombuffer(zlib.decompress(stored["w.bitmask.deflate"]), "u1")
    )
    shape = stored["w.shape"]
    mask = np.unpackbits(packed, count=shape.prod(), bitorder="little").astype(bool)
    dense = np.zeros(shape.prod(), stored["w.compressed"].dtype)
    dense[mask] = stored["w.compressed"]
    assert np.array_equal(dense.reshape(shape), w.numpy())


def test_bfloat16_on_request(tmp_path):
    model = nn.Linear(50, 50)
    save(model, tmp_path / "w", dtype=torch.bfloat16)
    back = load(tmp_path / "w")
    assert back["weight"].dtype == torch.bfloat16
    assert torch.equal(back["weight"], model.weight.bfloat16())
    fresh = load(tmp_path / "w", nn.Linear(50, 50))
    assert torch.equal(fresh.weight, model.weight.bfloat16().float())


def test_tied_tensors_are_written_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(100, 100), nn.Linear(100, 100)
            self.b.weight = self.a.weight

    model = Tied()
    assert save(model, tmp_path / "w") < 4 * 100 * 100 + 3000
    fresh = load(tmp_path / "w", Tied())
    assert torch.equal(fresh.b.weight, model.b.weight)
    assert fresh.a.weight is fresh.b.weight
    assert set(load(tmp_path / "w")) == set(model.state_dict())


def test_a_sparse_layout_is_written_as_what_it_holds(tmp_path):
    w = sparse((30, 40), 0.98).nan_to_num()
    save({"w": w.to_sparse_coo()}, tmp_path / "w")
    assert torch.equal(load(tmp_path / "w")["w"], w)


def test_names_that_look_like_the_files_own(tmp_path):
    w = torch.zeros(1000)
    save({"w": w, "w.shape": torch.ones(2)}, tmp_path / "w")
    back = load(tmp_path / "w")
    assert torch.equal(back["w"], w)
    assert torch.equal(back["w.shape"], torch.ones(2))
    with pytest.raises(ValueError, match="rename"):
        save({"w.bitmask": w}, tmp_path / "w")


def test_load_with_its_arguments_swapped_is_one_sentence():
    with pytest.raises(TypeError, match=r"^load reads a file, and got a Linear: load\(path, model\)$"):
        load(nn.Linear(4, 2), "net.safetensors")


def test_what_cannot_be_saved_is_one_sentence(tmp_path):
    with pytest.raises(TypeError, match="epoch is a int"):
        save({"epoch": 3}, tmp_path / "w")
    with pytest.raises(TypeError, match=r"got a str: save\(model, path\)"):
        save("w", nn.Linear(2, 2))
    with pytest.raises(ValueError, match="without data"):
        save({"w": torch.empty(3, device="meta")}, tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    save({"w": torch.ones(3)}, tmp_path / "w")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        save({"w": torch.zeros(3)}, tmp_path / "w")
    assert torch.equal(load(tmp_path / "w")["w"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


# ---- damaged and hostile files


def a_file(path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 30), nn.Linear(30, 2))
    model[0].weight.data.mul_(torch.rand(30, 200) < 0.03)
    save(model, path)
    return path.read_bytes()


def refused(path, *model):
    """A ValueError of one sentence that names the file."""
    with pytest.raises(ValueError, match=r"damaged|does not fit") as error:
        load(path, *model)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_truncated_and_flipped(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "w"
    whole = a_file(path)
    if data.draw(st.booleans()):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
    refused(path)


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=300))
def test_anything_else(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "w"
    path.write_bytes(content)
    refused(path)


def test_a_missing_file_is_the_systems_sentence(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")


def forged(path, tensors, **metadata):
    """What somebody else wrote, without a checksum."""
    safetensors.torch.save_file(tensors, path, {"format": FORMAT, "version": VERSION, **metadata})
    return path


def parts(mask=b"\x01", values=1, shape=(8,), kind=torch.uint8, suffix=".bitmask"):
    packed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(kind)
    return {"w.compressed": torch.ones(values), f"w{suffix}": packed, "w.shape": torch.tensor(shape)}


def test_a_forged_file_that_is_right_loads(tmp_path):
    assert load(forged(tmp_path / "w", parts()))["w"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


BOMB = zlib.compress(bytes(10**8), 9)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        (parts(shape=(2**40, 2**20)), "max_bytes"),
        (parts(shape=(2**62, 4)), "max_bytes"),
        (parts(shape=(-8,)), "shape"),
        (parts(shape=(-2, -4)), "shape"),
        (parts(shape=(16,)), "length"),
        (parts(shape=(7, 1), mask=b"\x80"), "bits"),
        (parts(shape=(8.0,)), "shape"),
        (parts(values=2), "bits"),
        (parts(values=0), "bits"),
        (parts(kind=torch.float32), "bytes"),
        (parts(mask=BOMB, suffix=".bitmask.deflate"), "length"),
        (parts(mask=BOMB[:100], shape=(8 * 10**8,), suffix=".bitmask.deflate"), "length"),
        (parts(mask=b"nonsense", suffix=".bitmask.deflate"), ""),
        ({"w.compressed": torch.ones(1), "w.shape": torch.tensor([8])}, ""),
        ({"w.compressed": torch.ones(1), "w.bitmask": torch.ones(1, dtype=torch.uint8)}, ""),
        ({**parts(), "w.compressed": torch.ones(1, 1)}, "values"),
    ],
)
def test_hostile_tensors(tmp_path, tensors, word):
    assert word in refused(forged(tmp_path / "w", tensors))


def test_a_bomb_is_not_unpacked(tmp_path):
    import tracemalloc

    forged(tmp_path / "w", parts(mask=BOMB, suffix=".bitmask.deflate"))
    tracemalloc.start()
    refused(tmp_path / "w")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "pt"},
        {"version": "2"},
        {"tied": "[1]"},
        {"tied": json.dumps({"v": "nobody"})},
        {"bytes": json.dumps({"w.compressed": ["system", [1]]})},
        {"bytes": json.dumps({"x": ["complex128", [99]]})},
        {"index": "{}"},
        {"index": json.dumps({"kept": {"w": {"0": 5}}, "masks": [], "sizes": {}, "biases": []})},
        {"index": json.dumps({"kept": {}, "masks": ["9:AA=="], "sizes": {}, "biases": []})},
        {"index": json.dumps({"kept": {}, "masks": ["x"], "sizes": {}, "biases": []})},
        {"sha256": "0" * 64},
        {"sha257": "0" * 64},
    ],
)
def test_hostile_metadata(tmp_path, metadata):
    refused(forged(tmp_path / "w", {**parts(), "x": torch.zeros(16, dtype=torch.uint8)}, **metadata))


@pytest.mark.parametrize(
    "index",
    [
        {"kept": {"weight": {"0": 0}}, "masks": ["9:/wE="], "sizes": {}, "biases": []},
        {"kept": {"weight": {"7": 0}}, "masks": ["4:Dw=="], "sizes": {}, "biases": []},
        {"kept": {}, "masks": [], "sizes": {"weight": 1}, "biases": []},
        {"kept": {}, "masks": [], "sizes": {"in_features": 10**9}, "biases": []},
        {"kept": {}, "masks": [], "sizes": {"a.b.c": 1}, "biases": []},
        {"kept": {}, "masks": [], "sizes": {"training": 0}, "biases": []},
        {"kept": {}, "masks": [], "sizes": {}, "biases": ["weight"]},
        {"kept": {}, "masks": [], "sizes": {}, "biases": ["nothing.bias"]},
    ],
)
def test_a_hostile_index_map_changes_nothing(tmp_path, index):
    model = nn.Linear(3, 4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    refused(forged(tmp_path / "w", dict(before), index=json.dumps(index)), model)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert model.in_features == 3


def test_a_model_of_another_shape_or_other_names(tmp_path):
    save(nn.Linear(3, 4), tmp_path / "w")
    assert "(4, 3) in the file and (4, 5) in the model" in refused(tmp_path / "w", nn.Linear(5, 4))
    assert "only" in refused(tmp_path / "w", nn.Linear(3, 4, bias=False))
    assert "only" in refused(tmp_path / "w", nn.Sequential(nn.Linear(3, 4)))


def test_a_header_that_claims_more_than_there_is(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(tmp_path / "w")
    (tmp_path / "w").write_bytes(struct.pack("<Q", 2**63) + header)
    refused(tmp_path / "w")
