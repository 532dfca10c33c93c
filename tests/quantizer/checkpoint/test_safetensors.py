from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.safetensors import read_checkpoint
from tests.quantizer.checkpoints import TinyLlama, write_safetensors


def safetensors(header: object, data: bytes = bytes(64)) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def row(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]} | changes


def folder_with(path: Path, content: bytes) -> Path:
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(content)
    return path


def test_tensors_are_listed_in_ggml_order_and_read_back(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", {"w": values}, "F32")
    tensor = read_checkpoint(tmp_path).tensors["w"]
    assert tensor.shape == (3, 2)
    assert b"".join(tensor.slabs(1)) == values.tobytes()


def test_a_convolution_over_video_is_read(tmp_path: Path) -> None:
    """It has five dimensions, and comes with language models that also see."""
    folder = folder_with(tmp_path, safetensors({"w": row(shape=[2, 1, 2, 1, 2])}))
    assert read_checkpoint(folder).tensors["w"].shape == (2, 1, 2, 1, 2)


def test_shards_are_gathered(tmp_path: Path) -> None:
    whole = read_checkpoint(TinyLlama().write(tmp_path / "one")).tensors
    sharded = read_checkpoint(TinyLlama(n_shards=3).write(tmp_path / "three")).tensors
    assert {n: (t.shape, b"".join(t.slabs(64))) for n, t in sharded.items()} == {
        n: (t.shape, b"".join(t.slabs(64))) for n, t in whole.items()
    }


def test_a_whole_file_goes_before_shards_as_in_transformers(tmp_path: Path) -> None:
    """The index may be a leftover, its shards gone."""
    folder = TinyLlama(n_shards=2).write(tmp_path / "model")
    write_safetensors(folder / "model.safetensors", {"w": np.ones((2, 3), np.float32)}, "F32")
    assert set(read_checkpoint(folder).tensors) == {"w"}
    for shard in folder.glob("model-*"):
        shard.unlink()
    assert set(read_checkpoint(folder).tensors) == {"w"}


@pytest.mark.parametrize("shape", [[0], [0, 4], [4, 0]])
def test_a_tensor_without_numbers_is_none(tmp_path: Path, shape: list[int]) -> None:
    folder = folder_with(tmp_path, safetensors({"w": row(), "nothing": row(shape=shape, data_offsets=[32, 32])}))
    assert set(read_checkpoint(folder).tensors) == {"w"}


MALFORMED: dict[str, bytes] = {
    "not valid JSON": safetensors(b"{nonsense"),
    "is not an object": safetensors([1, 2]),
    "header does not fit": (1 << 40).to_bytes(8, "little"),
    "header does not fit the file": b"\x10",
    "has offsets that do not": safetensors({"w": row(data_offsets=[0, 28])}),
    "has offsets that do not match its size": safetensors({"w": row(data_offsets=[48, 80])}),
    "has offsets that do not match": safetensors({"w": row(shape=[1 << 40, 1 << 40], data_offsets=[0, 32])}),
    "do not match its size or the file": safetensors({"w": row(shape=[0, 2], data_offsets=[0, 32])}),
    "an invalid shape": safetensors({"w": row(shape=[-4, -2])}),
    "an invalid shape or": safetensors({"w": row(shape="all")}),
    "'w' has an invalid shape": safetensors({"w": row(shape=[4, 2, 1, 1, 1, 1])}),
    "an invalid shape or invalid offsets": safetensors({"w": row(data_offsets=[32, 0, 1])}),
    "two tensors overlap": safetensors({"v": row(), "w": row(data_offsets=[16, 48])}),
    "stored as U16": safetensors({"w": row(dtype="U16")}),
    "an invalid name": safetensors({"w\x1b[2J": row()}),
    "valid JSON": safetensors(b'{"w":' + b"[" * 100_000),
    "is not valid JSON": safetensors(b'{"w": 1, "w": 2}'),
}


@pytest.mark.parametrize("cause", MALFORMED)
def test_malformed_shards_are_refused_with_their_cause(tmp_path: Path, cause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder_with(tmp_path, MALFORMED[cause]))
    assert cause in caught.value.cause


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../model.safetensors", "a/b.safetensors", "C:\\x.safetensors", "x\0.safetensors", ""]
)
def test_shard_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = TinyLlama(n_shards=2).write(tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(CheckpointError, match="outside the checkpoint folder"):
        read_checkpoint(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_shard_that_links_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    secret = tmp_path / "secret.safetensors"
    (folder / "model.safetensors").replace(secret)
    (folder / "model.safetensors").symlink_to(secret)
    with pytest.raises(CheckpointError, match="symlink out of the checkpoint folder"):
        read_checkpoint(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_the_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "models--a--b" / "snapshots" / "0123")
    blob = tmp_path / "models--a--b" / "blobs" / "4567"
    blob.parent.mkdir()
    (folder / "model.safetensors").replace(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert read_checkpoint(folder).tensors


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = TinyLlama(n_shards=2).write(tmp_path / "model")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        read_checkpoint(folder)


def test_pickles_are_refused_with_the_reason_and_the_way_out(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    (folder / "model.safetensors").replace(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"runs whatever code it contains.*safetensors version"):
        read_checkpoint(folder)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_checkpoint(tmp_path)


def test_text_that_utf_8_cannot_encode_is_refused_and_a_pair_of_surrogates_is_not(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"name": "\U0001f600"}))
    assert "\\ud83d" in (folder / "config.json").read_text()
    assert read_checkpoint(folder).config["name"] == "\U0001f600"
    (folder / "config.json").write_text(json.dumps(config | {"name": "\ud83d"}))
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        read_checkpoint(folder)
