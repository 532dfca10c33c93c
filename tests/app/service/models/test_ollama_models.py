from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from app.library.local.recipe import NO_RECIPE, Recipe, recipe_path, write_recipe
from app.service.models.manager import ModelManager
from app.service.models.model_file import own_attachments
from app.service.models.served_model import ServedModel
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


async def _loaded(models: ModelManager, name: str) -> ServedModel:
    model = await models.load(name)
    await model.ready()
    return model


async def test_a_manifest_that_changes_changes_the_recipe_at_the_next_request(
    home: Path, tmp_path: Path, tiny_model: Path
) -> None:
    base, manifest = _blob(home / "ollama"), f"{HOST}/mario/latest"
    add_ollama_layers(home / "ollama", manifest, base, system="You are Mario.")
    async with managing(library_settings(tmp_path, tiny_model), **{base.stem: 10}) as models:
        known = await _loaded(models, "mario")
        add_ollama_layers(home / "ollama", manifest, base, system="You are Luigi.", params={"temperature": 0.5})
        for name in ("mario", "mario:latest"):
            loaded = await models.named(name)
            assert loaded.is_loaded
            assert loaded.shared is known.shared
            assert loaded.file.recipe.system == "You are Luigi."
            assert loaded.file.recipe.parameters == {"temperature": 0.5}
        assert await models.named("mario") is loaded, "nothing is read while nothing changes"
        loaded.keep_alive.release()
        add_ollama_layers(home / "ollama", manifest, base)
        assert (await models.named("mario")).file.recipe == NO_RECIPE
        loaded = await _loaded(models, "mario")
        (home / "ollama" / "manifests" / manifest).unlink()
        assert await models.named("mario") is loaded


async def test_weights_and_adapters_of_a_changed_manifest_are_those_of_the_next_load(
    home: Path, tmp_path: Path, tiny_model: Path
) -> None:
    base, manifest = _blob(home / "ollama"), f"{HOST}/tuned/latest"
    add_ollama_layers(home / "ollama", manifest, base)
    async with managing(library_settings(tmp_path, tiny_model), total_bytes=100, **{base.stem: 10}) as models:
        plain = await _loaded(models, "tuned")
        add_ollama_layers(home / "ollama", manifest, base, adapter=lora(tmp_path / "adapter.gguf"))
        assert await models.named("tuned") is not plain, "its recipe was read again"
        assert (await models.named("tuned")).adapters == ()
        plain.keep_alive.release()
        assert (await models.named("tuned")).adapters == ("adapter-1",)
        other = tiny_llama(tmp_path / "other.gguf", lambda writer: writer.add_name("other"))
        blob = other.replace(base.with_name(f"sha256-{hashlib.sha256(other.read_bytes()).hexdigest()}"))
        add_ollama_layers(home / "ollama", manifest, blob)
        assert (await models.named("tuned:latest")).ref.path == blob


async def test_the_default_model_gets_the_recipe_that_its_file_beside_it_has_now(
    tmp_path: Path, tiny_model: Path
) -> None:
    async with managing(library_settings(tmp_path, tiny_model)) as models:
        assert models.default.file.recipe == NO_RECIPE
        write_recipe(models.default.ref.path, Recipe(system="Answer in verse.", template="{{ messages }}"))
        renewed = await models.named("")
        assert renewed is models.default
        assert (renewed.file.recipe.system, renewed.file.chat_template) == ("Answer in verse.", "{{ messages }}")
        recipe_path(renewed.ref.path).unlink()
        assert (await models.named("first")).file.recipe == NO_RECIPE


async def test_an_adapter_that_does_not_fit_is_an_error(home: Path, tmp_path: Path, tiny_model: Path) -> None:
    base = _blob(home / "ollama")
    add_ollama_layers(home / "ollama", f"{HOST}/tuned/latest", base, adapter="no adapter")
    async with managing(library_settings(tmp_path, tiny_model)) as models:
        with pytest.raises(ModelFileError):
            await models.load("tuned")
        with pytest.raises(ModelFileError):
            own_attachments(await models.catalog.resolve("tuned"))
