from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.service.models.model_file import read_attachments
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError
from tests.app.running import RunningService
from tests.quantizer.gguf_adapters import control_vector, lora


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
