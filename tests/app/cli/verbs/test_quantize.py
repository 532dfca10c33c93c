from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.settings.parsing import parse_byte_size
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import FILE_TYPES
from tests.app.cli.in_process import run_localllm
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.peft_adapters import pair, write_peft
from tests.quantizer.seeing_checkpoints import write_seeing


@pytest.fixture(autouse=True)
def measured_nothing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on the machine that runs the tests is in its user's cache."""
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def localllm(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_localllm(os.environ, *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF with a name that no terminal should obey."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_name("Small\x1b[31m one")
        writer.add_license("mit")
        writer.add_chat_template("{{ messages }}")

    return tiny_llama(tmp_path_factory.mktemp("model") / "small.gguf", edit)


@pytest.mark.slow
def test_the_json_of_a_run_names_the_size_of_its_output(tmp_path: Path, model: Path) -> None:
    output = tmp_path / "out.gguf"
    result = localllm("quantize", str(model), "Q8_0", "-o", str(output), "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["bytes"] == output.stat().st_size


@pytest.mark.slow
def test_a_dry_run_names_the_same_size_and_writes_nothing(tmp_path: Path, model: Path) -> None:
    dry = localllm("quantize", str(model), "q8_0", "--dry-run", "--json", cwd=tmp_path)
    assert not list(tmp_path.iterdir())
    wet = localllm("quantize", str(model), "q8_0", "--json", cwd=tmp_path)
    assert json.loads(dry.stdout)["bytes"] == json.loads(wet.stdout)["bytes"]
    assert [path.name for path in tmp_path.iterdir()] == ["small-Q8_0.gguf"]


@pytest.mark.slow
def test_the_list_names_the_exact_size_of_every_type_and_what_it_costs(tmp_path: Path, model: Path) -> None:
    result = localllm("quantize", str(model), "--list", "--json", cwd=tmp_path)
    said = json.loads(result.stdout)
    rows = {row["type"]: row for row in said["types"]}
    assert list(rows) == list(FILE_TYPES)
    written = localllm("quantize", str(model), "Q8_0", "--json", cwd=tmp_path)
    assert rows["Q8_0"]["bytes"] == json.loads(written.stdout)["bytes"]
    assert rows["Q8_0"]["perplexity_loss"] == 0.0026
    assert rows["Q8_0"]["max_tokens_per_s"] > rows["F16"]["max_tokens_per_s"]
    assert not rows["Q4_K_M"]["needs_imatrix"]
    assert all(row["writes_tps"] > 0 for row in rows.values())  # measured, for so small a model by its steps alone


@pytest.mark.slow
def test_a_model_that_sees_gets_its_projector_beside_it(tmp_path: Path) -> None:
    seeing = write_seeing(tmp_path / "seeing", "gemma3-seeing")
    said = localllm("quantize", str(seeing), "Q8_0", "--json", cwd=tmp_path)
    assert Path(json.loads(said.stdout)["projector"]).name == "mmproj-seeing-F16.gguf"
    found = sorted(path for path in tmp_path.iterdir() if path.is_file())
    assert [path.name for path in found] == ["mmproj-seeing-F16.gguf", "seeing-Q8_0.gguf"]
    assert json.loads(said.stdout)["bytes"] == sum(path.stat().st_size for path in found)


@pytest.mark.slow
def test_the_list_names_the_projector_too(tmp_path: Path) -> None:
    seeing = write_seeing(tmp_path / "seeing", "gemma3-seeing")
    said = json.loads(localllm("quantize", str(seeing), "--list", "--projector", "q8_0", "--json").stdout)
    assert said["projector"]["type"] == "Q8_0"
    assert "The projector, a separate file, adds" in localllm("quantize", str(seeing), "--list").stdout
    none = localllm("quantize", str(seeing), "--list", "--projector", "none", "--json")
    assert json.loads(none.stdout)["projector"] is None


@pytest.mark.slow
def test_the_list_for_a_quantized_model_promises_no_loss_as_from_the_original(tmp_path: Path, model: Path) -> None:
    quantized = tmp_path / "q.gguf"
    assert localllm("quantize", str(model), "Q4_1", "-o", str(quantized)).returncode == 0
    shown = localllm("quantize", str(quantized), "--list").stdout
    assert "This file has lost what Q4_1 loses: each type adds its loss to that" in shown


def test_the_list_is_a_table_for_people(model: Path) -> None:
    result = localllm("quantize", str(model), "--list")
    assert result.returncode == 0
    assert sum(line.split()[0] in FILE_TYPES for line in result.stdout.splitlines() if line.split()) == len(FILE_TYPES)
    assert "localllm tune --types" in result.stdout
    assert "has lost" not in result.stdout  # it is the original
    for line in result.stdout.splitlines():  # each type on a line of its own
        assert line.split()[0] in {*FILE_TYPES, "type", "bits:", "perplexity", "reads,", "How", "*"}


@pytest.mark.slow
def test_overridden_types_and_shards_are_reported(tmp_path: Path, model: Path) -> None:
    output = tmp_path / "out.gguf"
    options = ["--tensor", "blk.1=Q5_0", "--tensor", "nothing=Q8_0", "--max-shard-size", "32K"]
    result = localllm("quantize", str(model), "Q8_0", "-o", str(output), *options)
    assert result.returncode == 0
    assert "--tensor nothing=Q8_0 matches no tensor" in result.stderr
    assert re.search(r"^Needs [\d.]+ kB of free space in ", result.stderr, re.MULTILINE)
    assert "in 3 files" in result.stdout
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"out-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.mark.parametrize("size", ["", "0", "3X", "-5M", "1e9", "GB", "5MB5"])
def test_a_size_that_is_none_is_wrong_use(model: Path, size: str) -> None:
    assert localllm("quantize", str(model), "--max-shard-size", size).returncode == 2


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("500", 500), ("500M", 500_000_000), ("4.2gb", 4_200_000_000), ("2GiB", 2 << 30)]
)
def test_sizes_are_read_as_people_write_them(text: str, n_bytes: int) -> None:
    assert parse_byte_size(text) == n_bytes


def test_an_unknown_type_is_wrong_use(model: Path) -> None:
    result = localllm("quantize", str(model), "Q4_Z")
    assert result.returncode == 2
    assert "Q4_K_M" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_text_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_text("I am a text.")
    for verb in ("show", "quantize"):
        result = localllm(verb, str(tmp_path / "fake.gguf"))
        assert result.returncode == 1
        assert "is not a GGUF file" in result.stderr
        assert "Traceback" not in result.stderr


def test_show_prints_a_file_without_its_control_characters(model: Path) -> None:
    result = localllm("show", str(model))
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert lines["architecture"].strip() == "llama"
    assert lines["cache"].strip() == "256 bytes per token in F16"
    assert lines["licence"].strip() == "mit"


def test_show_as_json_is_one_object(model: Path) -> None:
    card = json.loads(localllm("show", str(model), "--json").stdout)
    assert (card["n_parameters"], card["n_ctx_train"], card["has_chat_template"]) == (79_168, 128, True)
    assert card["types"] == {"F16": {"n_tensors": 15, "n_bytes": 157_696}, "F32": {"n_tensors": 5, "n_bytes": 1_280}}


def test_the_folder_of_an_adapter_becomes_a_gguf_adapter(tmp_path: Path) -> None:
    base = TinyLlama(n_embd=64, n_ff=96).write(tmp_path / "base")
    folder = write_peft(tmp_path / "adapter", pair("model.layers.0.self_attn.v_proj", 64, 32))
    result = localllm("quantize", str(folder), "F16", "--base", str(base), "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["tensors"] == 2
    assert read_header(tmp_path / "adapter-F16.gguf").text("adapter.type") == "lora"


def test_an_adapter_without_its_model_is_an_error(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "adapter", pair("model.layers.0.self_attn.v_proj", 64, 32))
    result = localllm("quantize", str(folder), "F16", "--dry-run", cwd=tmp_path)
    assert result.returncode == 2
    assert "--base" in result.stderr


@pytest.mark.slow
def test_architectures_are_listed_without_a_source() -> None:
    listed = json.loads(localllm("quantize", "--list-architectures", "--json").stdout)
    llama = next(row for row in listed["architectures"] if "LlamaForCausalLM" in row["classes"])
    assert (llama["architecture"], llama["required"]) == ("llama", {"hidden_act": "silu"})
    assert {"hf_class": "VaultGemmaForCausalLM", "reason": "llama.cpp has no graph for it"} in listed["refused"]
    shown = localllm("quantize", "--list-architectures").stdout
    assert 'hidden_act = "silu"' in shown
    assert "VaultGemmaForCausalLM: llama.cpp has no graph for it." in shown


def test_quantize_needs_a_source_otherwise() -> None:
    result = localllm("quantize")
    assert result.returncode == 2
    assert "quantize needs a SRC" in result.stderr


@pytest.mark.slow
def test_what_the_makers_recommend_is_beside_a_quantized_model_too(tmp_path: Path, model: Path) -> None:
    source = tmp_path / "source" / "small.gguf"
    source.parent.mkdir()
    shutil.copy(model, source)
    source.with_name("small.generation_config.json").write_text('{"temperature": 0.6}')
    assert localllm("quantize", str(source), "Q8_0", "--json", cwd=tmp_path).returncode == 0
    assert (tmp_path / "small-Q8_0.generation_config.json").read_text() == '{"temperature": 0.6}'


# Copies that draft


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_a_copy_as_draft_goes_into_the_cache_once_and_a_damaged_one_is_made_again(cache: Path, model: Path) -> None:
    first = localllm("quantize", str(model), "--as-draft", "--json")
    assert first.returncode == 0, first.stderr
    [copy] = (cache / "drafts").iterdir()
    said = json.loads(first.stdout)
    assert (said["output"], said["type"], said["bytes"]) == (str(copy), "Q2_K", copy.stat().st_size)
    whole, made = copy.read_bytes(), copy.stat().st_mtime_ns

    again = localllm("quantize", str(model), "--as-draft", "--json")
    assert (again.returncode, copy.stat().st_mtime_ns) == (0, made)
    copy.write_bytes(whole[:1000])
    mended = localllm("quantize", str(model), "--as-draft")
    assert "It is made again." in mended.stderr
    assert copy.read_bytes() == whole


@pytest.mark.slow
def test_a_copy_of_a_model_that_goes_meanwhile_fails_and_leaves_nothing(
    cache: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.cli.verbs import quantize as verb

    doomed = Path(shutil.copy(model, tmp_path / "doomed.gguf"))
    written = verb._written

    def written_and_gone(request: Any) -> dict[str, object]:
        result = written(request)
        doomed.unlink()
        return result

    monkeypatch.setattr(verb, "_written", written_and_gone)
    done = localllm("quantize", str(doomed), "--as-draft")
    assert done.returncode == 1
    assert "doomed.gguf changed or went while it was copied" in done.stderr
    assert list((cache / "drafts").iterdir()) == []


NOT_WITH_COPIES = [
    ("-o", "x.gguf"),
    ("--size", "1MB"),
    ("--list",),
    ("--prune-layers", "1"),
    ("--tensor", "a=Q8_0"),
]


@pytest.mark.parametrize("options", NOT_WITH_COPIES)
def test_a_copy_takes_a_type_and_a_matrix_only(cache: Path, model: Path, options: tuple[str, ...]) -> None:
    done = localllm("quantize", str(model), "--as-draft", *options)
    assert done.returncode == 2
    assert "--as-draft takes" in done.stderr
    assert not cache.exists() or not (cache / "drafts").exists()
