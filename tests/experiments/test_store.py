"""The run folder: whole files at any moment, named errors, checkpoints that can be trusted."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sr2.experiments.errors import UserError
from sr2.experiments.run import store as store_module
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import CHECKPOINT, PREVIOUS, RunStore, find_runs, read_run, read_weights
from tests.experiments.tools.runs import finish
from tests.experiments.tools.synthetic import make_run

ROW = dict.fromkeys(("objective", "test_accuracy", "zero_pct", "small_pct", "seconds"), 1.0)
ROW |= dict.fromkeys(("sigma", "rho", "accepted", "rejected"))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = RunStore(tmp_path / "run", RunConfig())
    with made.locked():
        made.start()
    return made


def state(epoch: int) -> dict[str, object]:
    return {"epoch": epoch, "weights": torch.arange(1000.0) + epoch, "rows": [{"rho": None}]}


def test_a_checkpoint_comes_back_and_torch_reads_it_too(store: RunStore) -> None:
    assert store.load_checkpoint() is None
    store.save_checkpoint(state(1))
    store.save_checkpoint(state(2))
    loaded = store.load_checkpoint()
    assert loaded is not None
    assert loaded["epoch"] == 2
    assert torch.equal(loaded["weights"], torch.arange(1000.0) + 2)
    assert torch.load(store.path / CHECKPOINT, weights_only=True)["epoch"] == 2
    assert torch.load(store.path / PREVIOUS, weights_only=True)["epoch"] == 1


@pytest.mark.parametrize("damage", ["a flipped bit", "cut short", "empty", "something else"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_kept(store: RunStore, damage: str) -> None:
    store.save_checkpoint(state(1))
    store.save_checkpoint(state(2))
    path = store.path / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(
        {
            "a flipped bit": bytes(content),
            "cut short": path.read_bytes()[:-300],
            "empty": b"",
            "something else": b"x" * 99,
        }[damage]
    )
    with pytest.raises(UserError, match=rf"{path} is damaged: delete it to go on from .*{PREVIOUS}"):
        store.load_checkpoint()
    path.unlink()
    assert store.load_checkpoint()["epoch"] == 1  # type: ignore[index]
    (store.path / PREVIOUS).write_bytes(b"")
    with pytest.raises(UserError, match="delete it to start the run again"):
        store.load_checkpoint()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


def test_loading_a_checkpoint_executes_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save_checkpoint({"bomb": Bomb()})  # with a right checksum
    with pytest.raises(UserError, match="is damaged"):
        store.load_checkpoint()
    pickle.loads(pickle.dumps(Bomb()))  # it would have
    assert (tmp_path / "exploded").exists()


def names(store: RunStore) -> set[str]:
    return {path.name for path in store.path.iterdir()}


@pytest.mark.parametrize("trouble", ["the disk is full", "a limit of the system"])
def test_a_full_disk_is_named_and_leaves_the_state_before(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    store.save_checkpoint(state(1))
    before = names(store)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if trouble == "the disk is full":
            patch.setattr(os, "fsync", full)
            words = "No space left on device"
        else:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
            words = "File too large"
        try:
            with pytest.raises(UserError, match=f"{CHECKPOINT} cannot be written: {words}"):
                store.save_checkpoint(state(2))
        finally:
            if trouble != "the disk is full":
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(store) == before
    assert store.load_checkpoint()["epoch"] == 1  # type: ignore[index]


def test_what_a_killed_process_left_is_swept_up(store: RunStore) -> None:
    (store.path / f".{CHECKPOINT}.abc").write_bytes(b"half")
    with store.locked():
        assert names(store) == {".lock", "config.json", "env.json"}


def test_a_second_process_is_kept_out(store: RunStore) -> None:
    code = (
        "import sys; from pathlib import Path; from sr2.experiments.run.store import RunStore;"
        "from sr2.experiments.run.config import RunConfig\n"
        "with RunStore(Path(sys.argv[1]), RunConfig()).locked(): pass"
    )
    command = [sys.executable, "-c", code, str(store.path)]
    with store.locked():
        done = subprocess.run(command, capture_output=True, text=True)
    assert "is being trained by another process" in done.stderr
    with store.locked():
        pass  # the lock went with the block


def test_rows_without_their_checkpoint_are_not_trained_over(store: RunStore) -> None:
    store.write_metrics([{"epoch": 1, **ROW}])
    with store.locked():
        pass  # a process that was killed here before its first checkpoint starts anew
    (store.path / ".lock").unlink()  # brought from elsewhere
    with pytest.raises(UserError, match="has 1 epochs of a run and no checkpoint to go on from"), store.locked():
        pass
    assert not (store.path / ".lock").exists()
    store.save_checkpoint(state(1))
    with store.locked():
        pass


def test_a_run_that_fails_before_it_begins_leaves_no_folder(tmp_path: Path) -> None:
    made = RunStore(tmp_path / "runs" / "one", RunConfig())
    with pytest.raises(UserError), made.locked():
        raise UserError("no data")
    assert not made.path.exists()


def test_metrics_are_lines_of_json(store: RunStore) -> None:
    store.write_metrics([{**ROW, "epoch": 1, "R": None}, {**ROW, "epoch": 2, "R": 0.5}])
    record = read_run(store.path)
    assert [row["epoch"] for row in record.metrics] == [1, 2]
    assert record.result is None
    assert record.env["threads"] == torch.get_num_threads()
    assert {"commit", "python", "torch", "numpy", "sr2", "device", "cpu_count", "started"} <= set(record.env)


def test_a_resumed_run_keeps_its_first_start(store: RunStore) -> None:
    env = read_run(store.path).env
    (store.path / "env.json").write_text(json.dumps({**env, "started": "then"}))
    store.start()
    record = read_run(store.path)
    assert (record.env["started"], record.env["resumed"]) == ("then", 1)


def test_a_folder_that_is_not_a_run_is_said_to_be_so(tmp_path: Path, store: RunStore) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty is not a run: it has no config.json"):
        read_run(tmp_path / "empty")
    with pytest.raises(UserError, match="empty has no run in it"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=rf"config.json is a file: name its folder, {store.path}$"):
        find_runs([store.path / "config.json"])
    assert find_runs([tmp_path / "empty"], missing_ok=True) == []
    with pytest.raises(UserError, match="empty has no run in it"):
        find_runs([store.path, tmp_path / "empty"])
    assert [r.path.name for r in find_runs([tmp_path, store.path])] == ["run"]
    with pytest.raises(UserError, match=r"weights\.safetensors is not there"):
        read_weights(store.path)


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.json", "{"), ("config.json", "[1]"), ("config.json", '{"epoch": 1}'), ("metrics.jsonl", "{}\n{")],
)
def test_a_damaged_file_is_named(store: RunStore, file: str, content: str) -> None:
    (store.path / file).write_text(content)
    with pytest.raises(UserError, match=file):
        read_run(store.path)


@pytest.mark.parametrize("file", ["env.json", "metrics.jsonl", "result.json", "prune.json"])
@pytest.mark.parametrize("content", ["[]", "[1, 2]", "3", "null", '{"rows": [1], "epoch": "x", "accuracy": []}'])
def test_json_of_another_shape_is_named(store: RunStore, file: str, content: str) -> None:
    (store.path / file).write_text(content)
    if (file, content[0]) == ("env.json", "{"):
        assert read_run(store.path).env  # any facts will do
        return
    with pytest.raises(UserError, match=rf"{store.path / file} is not what a run writes"):
        read_run(store.path)


@pytest.mark.parametrize("key", ["layers", "histogram", "accuracy"])
def test_a_result_needs_its_keys(tmp_path: Path, key: str) -> None:
    path = make_run(tmp_path, RunConfig.of(epochs=1)).path / "result.json"
    result = json.loads(path.read_text())
    for other in ({n: v for n, v in result.items() if n != key}, {**result, key: {"zeros": "x"}}, {}):
        path.write_text(json.dumps(other))
        with pytest.raises(UserError, match=rf"{path} is not what a run writes"):
            read_run(path.parent)


@pytest.mark.parametrize(("name", "value", "words"), [("lam", "x", "lam cannot be 'x'"), ("regularizer", "l3", "l3")])
def test_a_setting_that_cannot_be_names_the_file(store: RunStore, name: str, value: str, words: str) -> None:
    path = store.path / "config.json"
    path.write_text(json.dumps({**RunConfig().to_dict(), name: value}))
    with pytest.raises(UserError, match=rf"{path} is not the configuration of a run \(.*{words}"):
        read_run(store.path)


def test_tied_tensors_are_written_under_each_name(store: RunStore) -> None:
    shared = torch.randn(3, 4).t()  # not contiguous either
    store.write_weights({"a": shared, "b": shared})
    read = read_weights(store.path)
    assert torch.equal(read["a"], shared)
    assert torch.equal(read["b"], shared)
    (store.path / store_module.WEIGHTS).write_bytes(b"junk")
    with pytest.raises(UserError, match="is damaged"):
        read_weights(store.path)


@pytest.mark.parametrize("file", ["config.json", "env.json", "metrics.jsonl", "result.json", "prune.json", "weights"])
def test_a_digit_that_was_changed_is_seen(tmp_path: Path, file: str) -> None:
    """What still reads well and says something else is the worst damage."""
    config = checked(RunConfig.of(model="mlp", epochs=1, batch=400))
    store = RunStore(tmp_path / "run", config)
    finish(config, store)
    read_run(store.path)
    read_weights(store.path)
    path = store_module.weights_file(store.path) if file == "weights" else store.path / file
    content = bytearray(path.read_bytes())
    digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    content[digits[-1] if file != "result.json" else digits[5]] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{path} was changed since .*: delete it"):
        read_weights(store.path) if file == "weights" else read_run(store.path)
