"""GGUFs as older programs wrote them, made by hand."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.convert import old_gguf
from quantizer.convert.old_gguf import InterleavedTensor
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from quantizer.gguf.validation import check_answers, validate_gguf
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import write_checkpoint
from tests.quantizer.gguf_files import byte_level_tokens, tiny_llama, tiny_weights

N_EXPERTS = 3


def written(source: Path, file_type: str, options: PlanOptions | None = None) -> tuple[Path, tuple[str, ...]]:
    """The file that `quantize` makes of another, and the warnings."""
    output = source.with_name(f"new-{source.name}")
    made = plan(source, file_type_named(file_type), output, options or PlanOptions())
    execute(made, 1, True, lambda _event: None)
    return made.shards[0].path, made.warnings


def arrays(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def experts_in_parts() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The weights of a Mixtral with each expert on its own, and the same experts joined."""
    tensors = tiny_weights()
    rng = np.random.default_rng(1)
    stacks: dict[str, np.ndarray] = {}
    for layer in range(2):
        for kind in ("gate", "up", "down"):
            name = f"blk.{layer}.ffn_{kind}"
            one = tensors.pop(f"{name}.weight")
            stacks[f"{name}_exps.weight"] = rng.standard_normal((N_EXPERTS, *one.shape)).astype(np.float16)
    for number in range(N_EXPERTS):
        for name, stack in stacks.items():
            tensors[name.replace("_exps", f".{number}")] = stack[number]
    tensors |= {f"blk.{layer}.ffn_gate_inp.weight": np.zeros((N_EXPERTS, 64), np.float32) for layer in range(2)}
    return tensors, stacks


def mixtral(path: Path, changed: dict[str, np.ndarray | None] | None = None) -> tuple[Path, dict[str, np.ndarray]]:
    """A Mixtral of before April 2024: each expert is a tensor; those of a layer are not side by side."""
    tensors, stacks = experts_in_parts()
    tensors |= {name: array for name, array in (changed or {}).items() if array is not None}
    tensors = {name: array for name, array in tensors.items() if (changed or {}).get(name, array) is not None}

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(N_EXPERTS)
        writer.add_expert_used_count(2)

    return tiny_llama(path, edit, tensors), stacks


def test_experts_of_an_old_mixtral_are_joined(tmp_path: Path) -> None:
    source, stacks = mixtral(tmp_path / "mixtral.gguf")
    output, warnings = written(source, "F16")
    assert warnings == ("18 separately stored experts are merged into 6 tensors.",)
    found = arrays(output)
    assert not any(".ffn_up.0." in name for name in found)
    for name, stack in stacks.items():
        assert np.array_equal(found[name], stack)
    check_answers(read_header(output), needs_tokenizer=True)


def test_a_split_mixtral_may_stay_split(tmp_path: Path) -> None:
    source, stacks = mixtral(tmp_path / "mixtral.gguf")
    output, _ = written(in_parts(source), "F16", PlanOptions(keep_split=True))
    shards = sorted(tmp_path.glob("new-parts-*.gguf"))
    assert output == shards[0]
    found = {name: array for shard in shards for name, array in arrays(shard).items()}
    assert all(np.array_equal(found[name], stack) for name, stack in stacks.items())


def in_parts(source: Path) -> Path:
    """The same file in parts, cut with gguf's own writer."""
    reader = gguf.GGUFReader(source)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    names, n_parts = list(tensors), 3
    cuts = [names[: len(names) // 3], names[len(names) // 3 : len(names) // 2], names[len(names) // 2 :]]
    for index, cut in enumerate(cuts):
        path = source.with_name(f"parts-{index + 1:05d}-of-{n_parts:05d}.gguf")

        def edit(writer: gguf.GGUFWriter, index: int = index) -> None:
            writer.add_expert_count(N_EXPERTS)
            writer.add_expert_used_count(2)
            writer.add_uint16("split.no", index)
            writer.add_uint16("split.count", n_parts)
            writer.add_int32("split.tensors.count", len(names))

        tiny_llama(path, edit, {name: tensors[name] for name in cut})
    return source.with_name(f"parts-00001-of-{n_parts:05d}.gguf")


@pytest.mark.parametrize(
    "changed",
    [
        {"blk.0.ffn_up.1.weight": None},
        {"blk.0.ffn_up.3.weight": np.zeros((96, 64), np.float16)},
        {"blk.0.ffn_up.1.weight": np.zeros((96, 64), np.float32)},
        {"blk.0.ffn_up.1.weight": np.zeros((64, 64), np.float16)},
    ],
    ids=["one is missing", "one too many", "another type", "another shape"],
)
def test_experts_that_are_not_alike_are_refused(tmp_path: Path, changed: dict[str, np.ndarray | None]) -> None:
    source, _ = mixtral(tmp_path / "mixtral.gguf", changed)
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up_exps\.weight has .* experts"):
        written(source, "F16")


def test_an_old_mixtral_is_not_run_but_says_what_to_do(tmp_path: Path) -> None:
    source, _ = mixtral(tmp_path / "mixtral.gguf")
    with pytest.raises(ModelFileError, match=r"experts separately, which llama\.cpp no longer reads") as caught:
        check_answers(validate_gguf(source), needs_tokenizer=True)
    assert caught.value.remedy == "Write it again with `localllm quantize` as the type that it has."


LAYOUTS = {31: (4, 4), 32: (4, 8), 33: (8, 8)}


def interleaved(rows: np.ndarray, n_rows: int, n_run: int) -> bytes:
    """Rows of Q4_0 blocks of 18 bytes, one group of rows after another, by the description and byte by byte."""
    packed = bytearray()
    for first in range(0, len(rows), n_rows):
        group = rows[first : first + n_rows].reshape(n_rows, -1, 18)
        for block in range(group.shape[1]):
            for row in group:
                packed += row[block, :2].tobytes()
            for start in range(0, 16, n_run):
                for row in group:
                    packed += bytes(byte ^ 0x88 for byte in row[block, 2 + start : 2 + start + n_run])
    return bytes(packed)


class Bytes:
    """Bytes as a source of them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.n_bytes = data, len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


@settings(max_examples=40)
@given(
    type_id=st.sampled_from(sorted(LAYOUTS)),
    n_groups=st.integers(1, 5),
    n_blocks=st.integers(1, 3),
    n_experts=st.integers(1, 2),
    rows_per_slab=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
def test_interleaved_rows_come_apart_in_slabs_of_any_size(
    type_id: int, n_groups: int, n_blocks: int, n_experts: int, rows_per_slab: int, seed: int
) -> None:
    n_rows, n_run = LAYOUTS[type_id]
    shape = (n_experts * n_groups * n_rows, n_blocks * 18)
    rows = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    source = Bytes(interleaved(rows, n_rows, n_run))
    origin = FileTensor("w", (n_blocks * 32, n_groups * n_rows, n_experts), TENSOR_TYPES[type_id], source, 0)
    slabs = list(InterleavedTensor(origin, "w").slabs(rows_per_slab))
    assert b"".join(slabs) == rows.tobytes()
    assert all(len(slab) == rows_per_slab * shape[1] for slab in slabs[:-1])
    assert 0 < len(slabs[-1]) <= rows_per_slab * shape[1]


def arm_file(path: Path, type_id: int) -> tuple[Path, dict[str, np.ndarray]]:
    """A file whose attention is in Q4_0 for a certain processor, and what it stands for in Q4_0."""
    plain = {
        name: gguf.quantize(array.astype(np.float32), gguf.GGMLQuantizationType.Q4_0) if ".attn_q." in name else array
        for name, array in tiny_weights().items()
    }
    raw = {name: array for name, array in plain.items() if ".attn_q." in name}
    stored = dict(plain)
    for name, array in raw.items():
        data = np.frombuffer(interleaved(array, *LAYOUTS[type_id]), np.uint8)
        stored[name] = data.reshape(array.shape)
    write_quantized(path, stored, set(raw))
    marked = bytearray(path.read_bytes())
    for name in raw:  # the writer knows no such type, so it is set in the table
        at = marked.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name) + 4 + 16
        assert struct.unpack_from("<I", marked, at)[0] == 2
        struct.pack_into("<I", marked, at, type_id)
    path.write_bytes(marked)
    return path, raw


def write_quantized(path: Path, tensors: dict[str, np.ndarray], quantized: set[str]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, array in tensors.items():
        is_quantized = name in quantized
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType.Q4_0 if is_quantized else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("type_id", LAYOUTS)
def test_q4_0_for_a_certain_processor_becomes_q4_0(tmp_path: Path, type_id: int) -> None:
    source, plain = arm_file(tmp_path / "arm.gguf", type_id)
    output, warnings = written(source, "Q4_0")
    name = TENSOR_TYPES[type_id].name
    assert warnings[0] == f"2 tensors in {name}, which llama.cpp no longer supports, become Q4_0 without loss."
    found = arrays(output)
    assert all(np.array_equal(found[tensor], array) for tensor, array in plain.items())
    with pytest.raises(ModelFileError, match=rf"is in {name}, which llama\.cpp no longer reads") as caught:
        check_answers(validate_gguf(source), needs_tokenizer=False)
    assert "Q4_0, which loses nothing" in caught.value.remedy


def test_rows_that_are_no_groups_are_refused() -> None:
    origin = FileTensor("w", (32, 6), TENSOR_TYPES[31], Bytes(bytes(6 * 18)), 0)
    with pytest.raises(ModelFileError, match="not a multiple of 4"):
        InterleavedTensor(origin, "w")


def old_vocabulary(path: Path, stored: str | None, architecture: str = "llama") -> Path:
    """A file without a pre-tokenizer, or with another than gpt-2."""

    def edit(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["tokenizer.ggml.pre"]
        if stored is not None:
            writer.add_tokenizer_pre(stored)

    return tiny_llama(path, edit, architecture=architecture)


def know_the_merges(monkeypatch: pytest.MonkeyPatch, architecture: str = "llama") -> None:
    merges = b"".join(struct.pack("<Q", len(text)) + text for text in (b"t h", b"h e"))
    known = {hashlib.sha256(merges).hexdigest(): (frozenset({architecture}), "llama-bpe")}
    monkeypatch.setattr(old_gguf, "_KNOWN_MERGES", known)


@pytest.mark.parametrize("stored", [None, "default"])
def test_merges_name_the_pre_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str | None) -> None:
    know_the_merges(monkeypatch)
    output, warnings = written(old_vocabulary(tmp_path / "old.gguf", stored), "F16")
    was = "missing" if stored is None else "named 'default'"
    assert warnings == (f"The pre-tokenizer was {was}; its merges identify it as 'llama-bpe'.",)
    header = read_header(output)
    assert header.text("tokenizer.ggml.pre") == "llama-bpe"
    assert header.array("tokenizer.ggml.tokens") == byte_level_tokens()


def test_unknown_merges_are_said_and_nothing_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = old_vocabulary(tmp_path / "old.gguf", None)
    for architecture in ("", "qwen2"):
        know_the_merges(monkeypatch, architecture)
        output, warnings = written(source, "F16")
        assert "tokenizer.ggml.pre" not in read_header(output).fields
        assert [warning[:46] for warning in warnings] == ["The file does not name its pre-tokenizer, and "]


@pytest.mark.parametrize("stored", ["gpt-2", "qwen2"])
def test_a_named_pre_tokenizer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str) -> None:
    know_the_merges(monkeypatch)
    output, warnings = written(old_vocabulary(tmp_path / "old.gguf", stored), "F16")
    assert (read_header(output).text("tokenizer.ggml.pre"), warnings) == (stored, ())


def test_a_file_that_is_current_is_left_as_it_is(tmp_path: Path) -> None:
    assert written(tiny_llama(tmp_path / "new.gguf"), "F16")[1] == ()


OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())


def deepseek(folder: Path, *, is_old: bool, kind: str = "F32") -> Path:
    """A random DeepSeek 2 as it is converted today, or with keys and values in one matrix, as before April 2025."""
    outline, rng = OUTLINES["deepseek2"], np.random.default_rng(3)
    weights = {
        name: ("F32", rng.standard_normal(shape).astype(np.float32)) for name, shape in outline["tensors"].items()
    }
    source, _ = written(write_checkpoint(folder / "model", outline["config"], weights), "F32")
    if not is_old:
        return source
    config, found = outline["config"], arrays(source)
    for layer in range(config["num_hidden_layers"]):
        keys, values = (found.pop(f"blk.{layer}.attn_{letter}_b.weight") for letter in "kv")
        fused = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
        found[f"blk.{layer}.attn_kv_b.weight"] = fused.reshape(-1, fused.shape[-1])
    reader, path = gguf.GGUFReader(source), folder / "old.gguf"
    writer = gguf.GGUFWriter(path, "deepseek2")
    lengths = {
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": config["v_head_dim"],
        "attention.head_count_kv": config["num_key_value_heads"],
    }
    for key, field in reader.fields.items():
        name = key.removeprefix("deepseek2.")
        if key.startswith("GGUF.") or key == "general.architecture" or name.endswith("_mla"):
            continue
        element = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, lengths.get(name, field.contents()), field.types[0], sub_type=element)
    for name, array in found.items():
        packed = kind != "F32" and ".attn_kv_b." in name
        as_type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(
            name, gguf.quantize(array, as_type) if packed else array, raw_dtype=as_type if packed else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_old_deepseek_becomes_what_its_checkpoint_becomes_today(tmp_path: Path) -> None:
    output, warnings = written(deepseek(tmp_path / "old", is_old=True), "F32")
    n_layers = OUTLINES["deepseek2"]["config"]["num_hidden_layers"]
    assert [warning for warning in warnings if "cache" in warning] == [
        f"The fused keys and values of {n_layers} layers are split, which makes the KV cache much smaller."
    ]
    today = deepseek(tmp_path / "new", is_old=False)
    found, expected = arrays(output), arrays(today)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    ours, theirs = (gguf.GGUFReader(path).fields for path in (output, today))
    assert {key: field.contents() for key, field in ours.items() if key.startswith("deepseek2.")} == {
        key: field.contents() for key, field in theirs.items() if key.startswith("deepseek2.")
    }


def test_values_of_a_quantized_old_deepseek_stay_as_they_are_and_keys_are_the_same_numbers(tmp_path: Path) -> None:
    source = deepseek(tmp_path / "old", is_old=True, kind="Q8_0")
    config, output = OUTLINES["deepseek2"]["config"], written(source, "F32")[0]
    fused = next(tensor for tensor in gguf.GGUFReader(source).tensors if tensor.name == "blk.0.attn_kv_b.weight")
    numbers = gguf.dequantize(fused.data, fused.tensor_type)
    heads = numbers.reshape(config["num_attention_heads"], -1, numbers.shape[-1])
    found, n_keys = arrays(output), config["qk_nope_head_dim"]
    assert np.array_equal(found["blk.0.attn_k_b.weight"], heads[:, :n_keys].swapaxes(1, 2))
    kept = gguf.dequantize(found["blk.0.attn_v_b.weight"], gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(kept, heads[:, n_keys:])


def test_an_old_deepseek_whose_shapes_make_no_sense_is_refused(tmp_path: Path) -> None:
    path = deepseek(tmp_path / "old", is_old=True)
    data = bytearray(path.read_bytes())
    at = data.index(b"deepseek2.attention.value_length") + len(b"deepseek2.attention.value_length") + 4
    struct.pack_into("<I", data, at, 3)
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"attn_kv_b\.weight contradicts the file"):
        written(path, "F32")


@pytest.mark.parametrize(("file_type", "is_kept"), [("Q5_0", True), ("Q4_0", False)])
def test_an_old_file_written_as_the_type_that_it_has_loses_nothing(
    tmp_path: Path, file_type: str, is_kept: bool
) -> None:
    """Some of its tensors are in other types than the rules of today would choose."""
    tensors, _ = experts_in_parts()
    types = {name: "Q8_0" if ".attn_v." in name else "Q5_0" for name in tensors if tensors[name].ndim == 2}
    del types["blk.0.ffn_gate_inp.weight"], types["blk.1.ffn_gate_inp.weight"]
    path = tmp_path / "mixtral.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_expert_count(N_EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(8)
    stored = {
        name: gguf.quantize(array.astype(np.float32), gguf.GGMLQuantizationType[types[name]])
        if name in types
        else array
        for name, array in tensors.items()
    }
    for name, array in stored.items():
        raw_dtype = gguf.GGMLQuantizationType[types[name]] if name in types else None
        writer.add_tensor(name, array, raw_dtype=raw_dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    output, warnings = written(path, file_type)
    assert any("already quantized" in warning for warning in warnings) is not is_kept
    found = arrays(output)
    values = [np.array_equal(found[f"blk.{i}.attn_v.weight"], stored[f"blk.{i}.attn_v.weight"]) for i in range(2)]
    joined = np.stack([stored[f"blk.0.ffn_up.{number}.weight"] for number in range(N_EXPERTS)])
    assert values == [is_kept] * 2
    assert np.array_equal(found["blk.0.ffn_up_exps.weight"].reshape(-1), joined.reshape(-1)) is is_kept
