from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.service.models.model_file import InfillTokens, infill_tokens_of, read_attachments
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.system.errors import UsageError
from tests.app.running import RunningService
from tests.quantizer.gguf_adapters import control_vector, lora
from tests.quantizer.gguf_files import byte_level_tokens, tiny_llama


def test_names_and_scales_are_split_from_files_that_may_have_an_equals_sign(tmp_path: Path, tiny_model: Path) -> None:
    plain, odd = lora(tmp_path / "plain.gguf"), lora(tmp_path / "a=b.gguf")
    vector = control_vector(tmp_path / "vector.gguf")
    settings = Settings(lora=(f"{plain}=style", str(odd)), control_vector=(f"{vector}=-0.5", str(vector)))
    attached = read_attachments(settings, tiny_model)
    assert attached.lora == ((str(plain), "style"), (str(odd), "a=b"))
    assert attached.control_vectors == ((str(vector), -0.5), (str(vector), 1.0))


@pytest.mark.parametrize("scale", ["strong", "nan", "1e9"])
def test_an_invalid_scale_is_a_usage_error(tmp_path: Path, tiny_model: Path, scale: str) -> None:
    vector = control_vector(tmp_path / "vector.gguf")
    with pytest.raises(UsageError, match="scale"):
        read_attachments(Settings(control_vector=(f"{vector}={scale}",)), tiny_model)


@pytest.mark.parametrize("setting", ["lora", "control_vector"])
def test_an_invalid_file_stops_the_start(tiny_model: Path, setting: str) -> None:
    with pytest.raises(ModelFileError):
        read_attachments(Settings(**{setting: (str(tiny_model),)}), tiny_model)  # type: ignore[arg-type]


def test_a_draft_model_is_found_by_name_and_validated(tmp_path: Path, tiny_model: Path) -> None:
    assert read_attachments(Settings(draft=str(tiny_model)), tiny_model).draft_path == str(tiny_model)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_model.read_bytes()[:200])
    with pytest.raises(ModelFileError):
        read_attachments(Settings(draft=str(broken)), tiny_model)


def test_no_draft_model_is_read_without_a_name_and_for_the_word_none(tiny_model: Path) -> None:
    for draft in ("", "none"):
        assert read_attachments(Settings(draft=draft), tiny_model).draft_path == ""


@pytest.fixture(scope="module")
def steered(start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    path = lora(tmp_path_factory.mktemp("lora") / "style.gguf")
    return start_service(lora=str(path))


def _answer(service: RunningService, **body: Any) -> str:
    wanted = {"prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True, **body}
    response = service.http.post("/v1/completions", json=wanted)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def test_a_request_sets_the_scale_of_an_adapter(steered: RunningService) -> None:
    assert steered.http.get("/lora-adapters").json() == [{"id": 0, "name": "style", "scale": 1.0}]
    in_full, none = _answer(steered), _answer(steered, lora=[])
    half = _answer(steered, lora=[{"name": "style", "scale": 0.5}])
    assert len({in_full, none, half}) == 3
    assert _answer(steered, lora=[{"id": 0, "scale": 1}]) == in_full
    assert _answer(steered, lora=[{"id": 0, "scale": 0}]) == none


@pytest.mark.parametrize(
    "entry", [{"id": 1, "scale": 1}, {"name": "other", "scale": 1}, {"scale": 1}, {"id": 0}, {"id": 0, "scale": 1e9}]
)
def test_an_unknown_adapter_is_a_400(steered: RunningService, entry: dict[str, Any]) -> None:
    response = steered.http.post("/v1/completions", json={"prompt": "hello", "lora": [entry]})
    assert response.status_code == 400


def _tokens(path: Path, **ids: int) -> InfillTokens | None:
    def edit(writer: gguf.GGUFWriter) -> None:
        for name, token in ids.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)

    return infill_tokens_of(read_header(tiny_llama(path / "model.gguf", edit)))


def _spelled(path: Path, *spellings: str) -> InfillTokens | None:
    def edit(writer: gguf.GGUFWriter) -> None:
        tokens = [*byte_level_tokens()[: 272 - len(spellings)], *spellings]
        for data in writer.kv_data:
            data.pop("tokenizer.ggml.tokens", None)
        writer.add_token_list(tokens)

    return infill_tokens_of(read_header(tiny_llama(path / "model.gguf", edit)))


def test_a_file_has_the_ids(tmp_path: Path) -> None:
    ids = {"fim_pre": 260, "fim_suf": 261, "fim_mid": 262, "fim_rep": 263, "fim_sep": 264, "bos": 265}
    assert _tokens(tmp_path, **ids) == InfillTokens(
        prefix=260, suffix=261, middle=262, repository=263, separator=264, begin=265
    )


def test_older_files_have_other_keys(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path, prefix=260, suffix=261, middle=262)
    assert tokens == InfillTokens(prefix=260, suffix=261, middle=262)


@pytest.mark.parametrize("ids", [{}, {"fim_pre": 260}, {"fim_pre": 260, "fim_suf": 272}])
def test_a_model_without_both_sides_cannot_fill_in_the_middle(tmp_path: Path, ids: dict[str, int]) -> None:
    assert _tokens(tmp_path, **ids) is None


def test_tokens_are_known_by_their_spelling(tmp_path: Path) -> None:
    assert _spelled(tmp_path, "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>") == InfillTokens(
        prefix=268, suffix=269, middle=270, repository=271
    )


def test_mistrals_models_have_the_suffix_first(tmp_path: Path) -> None:
    tokens = _spelled(tmp_path, "[PREFIX]", "[MIDDLE]", "[SUFFIX]")
    assert tokens == InfillTokens(prefix=269, suffix=271)
    assert tokens.is_suffix_first
