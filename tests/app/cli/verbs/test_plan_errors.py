"""What makes no sense to ask of a plan, and files that lie: a sentence each, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from app.cli.main import main
from tests.quantizer.gguf_heads import predicting_model

GIVEN = ("--ram", "16GiB@60GB/s", "--vram", "GPU0=8GiB@900GB/s")


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_DIR", "CACHE_DIR"):
        monkeypatch.setenv(f"LOCALLLM_{name}", str(tmp_path / name))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", *map(str, arguments)])
    assert leaving.value.code in (1, 2)
    said = capsys.readouterr().err
    assert "Error: " in said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ram", "0"),
        ("--ram", "-4GiB@60GB/s"),
        ("--ram", "16GiB@0GB/s"),
        ("--ram", "16GiB@-1GB/s"),
        ("--ram", "1e400GiB"),
        ("--ram", "nan"),
        ("--ram", ""),
        ("--ram", "9" * 40),
        ("--vram", "GPU0=0GiB@900GB/s"),
        ("--vram", "GPU0=-8GiB@900GB/s"),
        ("--vram", "GPU0=8GiB@900"),
        ("--vram", "=8GiB"),
        ("--vram", "GPU0"),
        ("--vram", "A=1GiB@1GB/s", "--vram", "A=2GiB@1GB/s"),
        ("--ctx", "-1"),
        ("--ctx", str(1 << 40)),
        ("--ctx", "many"),
        ("--kv-type", "q4_k"),
        ("--kv-type", "f16,f16,f16"),
        ("--draft", "no-such-model.gguf"),
        ("--lora", "no-such-adapter.gguf"),
        ("--mmproj", "no-such-projector.gguf"),
    ],
)
def test_impossible_numbers_and_names_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, arguments: tuple[str, ...]
) -> None:
    refused(capsys, tiny_model, *arguments, *(option for option in GIVEN if arguments[0] not in GIVEN))


def test_files_that_are_not_what_they_are_named_as_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    assert "is not a projector" in refused(capsys, tiny_model, "--mmproj", tiny_model, *GIVEN)
    assert "is not a LoRA adapter" in refused(capsys, tiny_model, "--lora", tiny_model, *GIVEN)


@pytest.mark.parametrize(
    "edit",
    [
        lambda writer: writer.add_uint32("glm4moe.block_count", 100_000),
        lambda writer: writer.add_uint32("glm4moe.embedding_length", 0xFFFFFFFF),
        lambda writer: writer.add_uint32("glm4moe.attention.head_count_kv", 7_777_777),
        lambda writer: writer.add_nextn_predict_layers(400),
        lambda writer: writer.add_expert_used_count(4000),
    ],
)
def test_a_header_that_lies_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, edit: Callable[[gguf.GGUFWriter], None]
) -> None:
    refused(capsys, predicting_model(tmp_path / "m.gguf", "glm4moe", edit), *GIVEN)


def test_what_is_no_model_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"GGUF" + b"\xff" * 60, b"PK\x03\x04" + b"\0" * 60):
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        refused(capsys, path, *GIVEN)


def test_a_context_beyond_all_memory_is_planned_by_the_header_alone(
    capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", str(tiny_model), "--ctx", str(1 << 30), *GIVEN])
    assert leaving.value.code == 0
    assert "It will not run here." in capsys.readouterr().out
