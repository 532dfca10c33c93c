from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from app.service.models.model_file import own_attachments
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.external_folders import add_ollama_layers
from tests.app.service.models.managed import library_settings, managing
from tests.quantizer.gguf_adapters import lora
from tests.quantizer.gguf_files import tiny_llama

HOST = "registry.ollama.ai/library"


def _blob(folder: Path) -> Path:
    (folder / "blobs").mkdir(parents=True)
    made = tiny_llama(folder / "blobs" / "new")
    return made.replace(made.with_name(f"sha256-{hashlib.sha256(made.read_bytes()).hexdigest()}"))


async def test_models_of_ollama_run_with_their_own_layers_and_share_what_is_the_same(
    home: Path, tmp_path: Path, tiny_model: Path
) -> None:
    ollama = home / "ollama"
    base = _blob(ollama)
    add_ollama_layers(ollama, f"{HOST}/base/latest", base)
    add_ollama_layers(ollama, f"{HOST}/mario/latest", base, system="You are Mario.", params={"temperature": 0.5})
    add_ollama_layers(ollama, f"{HOST}/tuned/latest", base, adapter=lora(tmp_path / "adapter.gguf"))
    async with managing(library_settings(tmp_path, tiny_model), total_bytes=100, **{base.stem: 10}) as models:
        plain, mario, tuned = [await models.load(name) for name in ("base", "mario", "tuned")]
        assert [model.file.recipe.system for model in (plain, mario, tuned)] == ["", "You are Mario.", ""]
        assert [model.ref.id for model in (plain, mario, tuned)] == ["base:latest", "mario:latest", "tuned:latest"]
        assert tuned.shared is not plain.shared is mario.shared
        assert (tuned.adapters, plain.adapters) == (("adapter-1",), ())
        [(path, _)] = tuned.engine.config.lora
        assert Path(path).parent == base.parent
        assert await models.load("mario") is mario
        while mario.is_busy:  # noqa: ASYNC110 (it is loading)
            await asyncio.sleep(0.01)
        await models.release(mario.ref)
        assert plain.shared.has_names


async def test_an_adapter_that_does_not_fit_is_an_error(home: Path, tmp_path: Path, tiny_model: Path) -> None:
    base = _blob(home / "ollama")
    add_ollama_layers(home / "ollama", f"{HOST}/tuned/latest", base, adapter="no adapter")
    async with managing(library_settings(tmp_path, tiny_model)) as models:
        with pytest.raises(ModelFileError):
            await models.load("tuned")
        with pytest.raises(ModelFileError):
            own_attachments(await models.catalog.resolve("tuned"))
