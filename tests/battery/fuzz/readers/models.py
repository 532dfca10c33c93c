"""Readers of models and checkpoints: GGUF headers, safetensors, tokenizers, config.json, matrices, lists of files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.battery.fuzz.target import Form, Reader, Target, document

__all__ = ["TARGETS"]

_N_ZEROS = 1 << 16  # behind a header: the tensors of a small file


@dataclass(frozen=True, slots=True)
class _Padded:
    """The begin of a file, of which the rest is zeros, as a ByteSource."""

    data: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.data) + _N_ZEROS

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop].ljust(max(0, min(stop, self.n_bytes) - start), b"\0")


def _gguf(folder: Path) -> Reader:
    from app.library.machine_fit.planning import planning_context
    from app.protocol.plan import describe_plan
    from app.settings.settings import Settings
    from offload.footprint.model import PlannedModel
    from quantizer.gguf.header import parse_header
    from quantizer.gguf.model_info import read_model_info
    from quantizer.gguf.projector_header import parse_projector
    from quantizer.gguf.sampling_keys import sampling_of_header
    from quantizer.gguf.validation import check_answers, is_model, validate_header
    from tests.offload.machines import MACHINES

    planning = planning_context(Settings(data_dir=folder, cache_dir=folder), next(iter(MACHINES.values())))

    def read(data: bytes) -> None:
        header = parse_header(_Padded(data), folder / "model.gguf")
        if not is_model(header):
            parse_projector(header)
        validate_header(header)
        read_model_info(header)
        sampling_of_header(header)
        check_answers(header, needs_tokenizer=False)
        describe_plan(planning.plan(PlannedModel(header, header.tensors), wants_remedies=False))

    return read


def _heads() -> list[bytes]:
    """The heads of a Llama of eight tokens, of its first shard, and of a projector."""
    import gguf
    import numpy as np

    from quantizer.gguf.header import read_header
    from tests.quantizer.gguf_projectors import tiny_projector

    def write(path: Path, edit: Callable[[gguf.GGUFWriter], None] = lambda _writer: None) -> Path:
        writer = gguf.GGUFWriter(path, "llama")
        for add, value in (
            (writer.add_context_length, 128),
            (writer.add_embedding_length, 32),
            (writer.add_feed_forward_length, 32),
            (writer.add_block_count, 1),
            (writer.add_head_count, 2),
            (writer.add_head_count_kv, 1),
        ):
            add(value)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", "<0x0A>", "a", "b", "ab", "▁"])
        writer.add_token_scores([0.0] * 4 + [-1.0, -2.0, -3.0, -4.0])
        writer.add_token_types([2, 3, 3, 6, 1, 1, 1, 1])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        edit(writer)
        for name, shape in (
            ("token_embd", (8, 32)),
            ("blk.0.attn_q", (32, 32)),
            ("blk.0.attn_k", (16, 32)),
            ("blk.0.ffn_up", (32, 32)),
        ):
            writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float16))
        writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def sampled(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.7)
        writer.add_int32("general.sampling.top_k", 40)
        writer.add_string("tokenizer.chat_template", "{{ messages }}")

    def split(writer: gguf.GGUFWriter) -> None:
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", 0)

    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write(Path(folder, "a.gguf")),
            write(Path(folder, "b.gguf"), sampled),
            write(Path(folder, "c.gguf"), split),
            tiny_projector(Path(folder, "d.gguf")),
        ]
        return [path.read_bytes()[: read_header(path).data_offset] for path in paths]


def _imatrix(folder: Path) -> Reader:
    from quantizer.mix.imatrix import imatrix_entries, read_imatrix

    path = folder / "m.imatrix"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        matrix = read_imatrix(path)
        imatrix_entries(path, matrix)
        for name in matrix.entries:
            assert matrix.entries[name].means().ndim == 2

    return read


def _matrices() -> list[bytes]:
    import numpy as np

    from quantizer.mix.imatrix import ActivationStats, ImportanceMatrix, encode_imatrix

    stats = ActivationStats(np.ones((1, 8)), np.array([3]))
    experts = ActivationStats(np.ones((2, 4)), np.array([1, 0]))
    matrices = [
        ImportanceMatrix({"blk.0.attn_q.weight": stats}, ("text",), 512),
        ImportanceMatrix({"blk.0.ffn_up_exps.weight": experts}, (), 0),
    ]
    return list(map(encode_imatrix, matrices))


def _safetensors(folder: Path) -> Reader:
    from quantizer.checkpoint.packed.methods import check_stored
    from quantizer.checkpoint.safetensors import read_weights

    path = folder / "model.safetensors"

    def read(data: bytes) -> None:
        path.write_bytes(data + bytes(1024))
        for tensor in read_weights(folder, path.name).values():
            check_stored(tensor)
            assert tensor.start + tensor.stored.tensor_bytes(tensor.shape) <= len(data) + 1024

    return read


def _weights() -> list[bytes]:
    tensors = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
        "b.bias": {"dtype": "BF16", "shape": [3], "data_offsets": [32, 38]},
        "empty": {"dtype": "I64", "shape": [0], "data_offsets": [38, 38]},
    }
    text = json.dumps(tensors).encode()
    return [len(text).to_bytes(8, "little") + text]


def _bundle(folder: Path, data: bytes, names: tuple[str, ...]) -> None:
    """Write the files that an input bundles, by name; a text is written as it is, and anything else as JSON."""
    bundled = document(data)
    for name in names:
        value = bundled.get(name) if isinstance(bundled, dict) else None
        if value is None:
            (folder / name).unlink(missing_ok=True)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "vocab.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
)


def _tokenizer(folder: Path) -> Reader:
    from quantizer.checkpoint.config import Config
    from quantizer.tokenizers import read_vocabulary, vocabulary_entries

    def read(data: bytes) -> None:
        _bundle(folder, data, _TOKENIZER_FILES)
        vocabulary = read_vocabulary(folder, Config({"vocab_size": 32, "eos_token_id": [2]}))
        entries = list(vocabulary_entries(vocabulary))
        assert len(vocabulary.tokens) == 32
        assert len({entry.key for entry in entries}) == len(entries), "a key comes twice"

    return read


def _tokenizers() -> list[bytes]:
    added = [
        {"id": number, "content": text, "special": True, "lstrip": False, "rstrip": False, "normalized": False}
        for number, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    vocab = {text: number for number, text in enumerate(("<unk>", "<s>", "</s>", "a", "b", "ab", "▁", "##b"))}
    pieces = [[text, -float(number)] for text, number in vocab.items()]
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>", "add_bos_token": True}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    prepend = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    charsmap = [{"type": "Precompiled", "precompiled_charsmap": "AAAA"}, *prepend]
    kinds: list[dict[str, Any]] = [
        {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": byte_level,
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"], "ignore_merges": False},
        },
        {
            "normalizer": {"type": "Sequence", "normalizers": prepend},
            "post_processor": template,
            "model": {"type": "BPE", "byte_fallback": True, "vocab": vocab, "merges": [["a", "b"]]},
        },
        {
            "normalizer": {"type": "Sequence", "normalizers": charsmap},
            "pre_tokenizer": metaspace,
            "post_processor": template,
            "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces},
        },
        {
            "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
            "model": {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "vocab": vocab},
        },
    ]
    bundles: list[dict[str, Any]] = [
        {"tokenizer.json": {"added_tokens": added, **kind}, "tokenizer_config.json": names} for kind in kinds
    ]
    bundles[0]["generation_config.json"] = {"eos_token_id": [2, 1], "pad_token_id": 0}
    bundles[1]["chat_template.jinja"] = "{{ messages }}"
    bundles[2]["tokenizer_config.json"] = {**names, "chat_template": [{"name": "tool_use", "template": "{{ tools }}"}]}
    bundles.append({"vocab.txt": "[UNK]\n[CLS]\n[SEP]\na\n##b", "tokenizer_config.json": {"do_lower_case": True}})
    return [json.dumps(bundle).encode() for bundle in bundles]


def _pieces(folder: Path) -> Reader:
    from quantizer.tokenizers.alphabets import alphabet_of_pieces, unigram_alphabet
    from quantizer.tokenizers.sentencepiece_model import Algorithm, parse_piece_model

    def read(data: bytes) -> None:
        model = parse_piece_model(data, "tokenizer.model")
        made = alphabet_of_pieces if model.algorithm is Algorithm.BPE else unigram_alphabet
        assert all(0 <= number < len(model.pieces) for number in model.special_ids.values())
        made(model, "tokenizer.model")

    return read


def _piece_models() -> list[bytes]:
    from tests.quantizer.tokenizer_files import BYTES, piece_model

    specials = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    words = [("▁", -1.0, 1), ("a", -2.0, 1), ("▁a", -3.0, 1)]
    return [
        piece_model([*specials, *((name, 0.0, 6) for name in BYTES[:4]), *words], [(3, 2)], [(3, 1), (4, 0)]),
        piece_model([*specials, *words, ("user", 0.0, 4), ("gone", 0.0, 5)], [(3, 1), (41, 1), (24, 1)], [(5, 1)]),
        piece_model([*specials, *((name, 0.0, 6) for name in BYTES), *words], [(3, 2)], []),
    ]


def _config(_folder: Path) -> Reader:
    from app.library.machine_fit.planning import planning_context
    from app.settings.settings import Settings
    from offload.footprint.model import PlannedModel
    from quantizer.convert.checkpoint_source import config_header
    from quantizer.gguf.validation import header_faults
    from tests.offload.machines import MACHINES

    planning = planning_context(Settings(data_dir=_folder, cache_dir=_folder), next(iter(MACHINES.values())))

    def read(data: bytes) -> None:
        settings = document(data)
        if not isinstance(settings, dict) or _has_half_a_pair(settings):  # refused where it is read
            return
        header = config_header(settings, "model")
        faults = list(header_faults(header))
        assert not faults, f"what it would become is refused: {faults[0]}"
        planning.plan(PlannedModel(header, header.tensors), wants_remedies=False)

    return read


def _has_half_a_pair(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_CLASSES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM", "MixtralForCausalLM",
    "PhiForCausalLM", "DeepseekV3ForCausalLM", "MambaForCausalLM", "BertModel", "Qwen2VLForConditionalGeneration",
)  # fmt: skip
_CONFIG_WORDS = (
    "num_experts", "num_local_experts", "num_experts_per_tok", "sliding_window", "rope_scaling", "rope_parameters",
    "text_config", "vision_config", "layer_types", "head_dim", "kv_lora_rank", "state_size", "n_shared_experts",
    "moe_intermediate_size", "mrope_section", "yarn", "llama3", "factor", "quantization_config", *_CLASSES,
)  # fmt: skip


def _configs() -> list[bytes]:
    from tests.quantizer.checkpoints import TinyLlama

    config = TinyLlama(n_layers=1, n_embd=64, n_ff=64).config()
    extra: dict[str, dict[str, Any]] = {
        "Qwen3MoeForCausalLM": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
        "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
        "Gemma3ForCausalLM": {"sliding_window": 64, "head_dim": 16, "query_pre_attn_scalar": 16},
        "DeepseekV3ForCausalLM": {
            "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
            "first_k_dense_replace": 0, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16, "v_head_dim": 16, "routed_scaling_factor": 1.0, "n_group": 1,
            "norm_topk_prob": True, "scoring_func": "sigmoid",
        },
        "MambaForCausalLM": {"state_size": 16, "conv_kernel": 4, "intermediate_size": 128, "time_step_rank": 4},
        "BertModel": {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    }  # fmt: skip
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
    made = [{**config, "architectures": [name], **extra.get(name, {})} for name in _CLASSES]
    return [json.dumps(each).encode() for each in (*made, {**config, **scaled}, {"text_config": config})]


def _shards(folder: Path) -> Reader:
    """Read a list of shards, beside which there are two."""
    from quantizer.checkpoint.safetensors import read_checkpoint

    (folder / "config.json").write_text("{}")
    for number, name in enumerate(("a", "b"), 1):
        header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        data = len(header).to_bytes(8, "little") + header + bytes(4)
        (folder / f"model-{number:05d}-of-00002.safetensors").write_bytes(data)
    names = ("model.safetensors.index.json",)

    def read(data: bytes) -> None:
        (folder / names[0]).write_bytes(data)
        for tensor in read_checkpoint(folder).tensors.values():
            assert tensor.name in ("a", "b")

    return read


def _indexes() -> list[bytes]:
    first, second = (f"model-{number:05d}-of-00002.safetensors" for number in (1, 2))
    maps = ({"a": first, "b": second}, {"a": first}, {"a": "../outside.safetensors"})
    return [json.dumps({"metadata": {"total_size": 8}, "weight_map": each}).encode() for each in maps]


_QUANTIZER = ("quantizer",)
TARGETS = (
    Target("gguf", _gguf, ("quantizer.gguf", "offload"), _heads, Form.BYTES, base_s=1.0),
    Target("imatrix", _imatrix, ("quantizer.mix.imatrix", "quantizer.gguf"), _matrices, Form.BYTES, max_bytes=1024),
    Target("safetensors", _safetensors, ("quantizer.checkpoint",), _weights, Form.WEIGHTS, ("dtype", "U8", "F8_E4M3")),
    Target("tokenizer", _tokenizer, ("quantizer.tokenizers", "quantizer.checkpoint"), _tokenizers),
    Target("tokenizer_model", _pieces, ("quantizer.tokenizers",), _piece_models, Form.BYTES, max_bytes=8_192),
    Target(
        "config",
        _config,
        ("quantizer.architectures", "quantizer.convert", "offload"),
        _configs,
        words=_CONFIG_WORDS,
        base_s=1.0,
    ),
    Target("shards", _shards, ("quantizer.checkpoint",), _indexes, words=("weight_map", "model.safetensors")),
)
