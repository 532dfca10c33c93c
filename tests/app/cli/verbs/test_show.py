from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement
from app.library.local import model_record
from tests.app.small_models import small_model, small_shards

Run = Callable[..., Any]
URL = "https://huggingface.co/org/base"


def test_a_model_is_shown_as_one_object_with_documented_keys(localllm: Run) -> None:
    output = localllm("show", "guide", "--json").json
    assert output["architecture"] == "llama"
    assert output["kv_bytes_per_token"] > 0
    keys = ["path", "files", "sha256", "template_base", "tuned", "rows"]
    assert list(output)[-len(keys) :] == keys


def test_all_files_of_a_split_model_are_listed(localllm: Run, models: Path) -> None:
    paths = small_shards(models / "me" / "x" / "big.gguf", 2)
    output = localllm("show", "big-00001-of-00002", "--json").json
    assert output["files"] == [str(path) for path in paths]
    assert output["file_bytes"] == sum(path.stat().st_size for path in paths)
    assert output["sha256"] == [None, None]


@pytest.fixture
def base(home: Path) -> Path:
    """The tokenizer's settings of a repository in the Hugging Face cache."""
    path = home / ".cache/huggingface/hub/models--org--base/snapshots/c1/tokenizer_config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"chat_template": "one\ntwo"}))
    return path


def test_a_template_is_compared_with_that_of_a_base_that_is_here(localllm: Run, models: Path, base: Path) -> None:
    texts = {"general__base_model__0__repo_url": URL}
    small_model(models / "me" / "x" / "same.gguf", tokenizer__chat_template="one\ntwo", **texts)
    small_model(models / "me" / "x" / "other.gguf", tokenizer__chat_template="one\n2\n3", **texts)
    assert "the same as in org/base" in localllm("show", "same").out
    assert "differs from org/base (2 lines added, 1 removed" in localllm("show", "other").out
    assert "-two\n+2\n+3" in localllm("show", "other", "--template").out
    base.unlink()
    assert "base" not in localllm("show", "other").out
    assert localllm("show", "other", "--template").out == "one\n2\n3\n"


def test_what_a_terminal_would_obey_is_not_printed(localllm: Run, models: Path) -> None:
    evil = "\x1b]8;;http://x\x07y\u202e"
    small_model(models / "me" / "x" / "m.gguf", evil, general__license=evil, tokenizer__chat_template=evil)
    for arguments in ((), ("--template",)):
        assert not set("\x1b\x07\u202e") & set(localllm("show", "m", *arguments).out)


def test_measured_tuning_is_shown(localllm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = SpeedMeasurement(
        RuntimeSettings(4, flash_attention=True, extra_buffers=False), 120.0, ((0, 30.0), (1024, 20.5)), ()
    )
    monkeypatch.setattr(model_record, "_tuned", lambda _path, _cache_dir: tuned)
    expected = "fused attention, 4 threads: 120.0 tok/s of prompt; tok/s of answer by tokens in the cache: "
    assert expected + "30.0 at 0, 20.5 at 1024" in localllm("show", "guide").out
