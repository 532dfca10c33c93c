from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.library.external import adapters_of, external_models, recipe_of
from app.library.local.index import Index
from app.library.local.placement import copy_model, link_model, plan_import
from app.library.local.recipe import NO_RECIPE, Recipe, read_recipe
from app.library.local.resolve import find_importable, resolve
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.external_folders import add_ollama_layers, ollama_model

MARIO = "registry.ollama.ai/library/mario/latest"
LAYERS: dict[str, Any] = {
    "template": "{{ .System }} {{ .Prompt }}",
    "system": "You are Mario.",
    "params": {"temperature": 0.5, "num_ctx": 4096, "stop": ["<|end|>", "User:"]},
    "messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "It's me!"}],
    "license": "MIT",
}
RECIPE = Recipe(
    system="You are Mario.",
    license="MIT",
    parameters=LAYERS["params"],
    messages=tuple(LAYERS["messages"]),
)


@pytest.fixture
def base(home: Path) -> Path:
    """The blob of a plain model of Ollama, called `small`."""
    return ollama_model(home / "ollama", "registry.ollama.ai/library/small/latest")


def test_models_over_one_blob_have_each_its_own_layers(home: Path, base: Path) -> None:
    add_ollama_layers(home / "ollama", MARIO, base, **LAYERS)
    refs = {ref.id: ref for ref in external_models()}
    assert refs["mario:latest"].path == refs["small:latest"].path == base
    assert recipe_of(refs["mario:latest"]) == RECIPE
    assert recipe_of(refs["small:latest"]) == NO_RECIPE
    settings = Settings(data_dir=home / "data")
    assert recipe_of(resolve("mario", settings)) == RECIPE
    assert recipe_of(find_importable(str(base), settings)) == NO_RECIPE


def test_several_layers_of_a_kind_count_together(home: Path, base: Path) -> None:
    """Ollama keeps a licence of the base and of the model made of it."""
    add_ollama_layers(home / "ollama", MARIO, base, license="MIT")
    path = home / "ollama" / "manifests" / MARIO
    path.write_text(path.read_text().replace('"layers": [', '"layers": [' + _layer_of(path, "license") + ", "))
    assert recipe_of(resolve("mario", Settings(data_dir=home / "data"))).license == "MIT\n\nMIT"


def _layer_of(manifest: Path, kind: str) -> str:
    layers = json.loads(manifest.read_text())["layers"]
    return json.dumps(next(layer for layer in layers if layer["mediaType"].endswith(kind)))


@pytest.mark.parametrize(
    "layers",
    [
        {"params": "not json"},
        {"params": [1]},
        {"messages": {"role": "user"}},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": ["hello"]},
        {"params": "[" * 100_000},
        {"system": "a" * (1 << 20) + "b"},
    ],
)
def test_a_layer_that_cannot_be_read_is_an_error(home: Path, base: Path, layers: dict[str, Any]) -> None:
    add_ollama_layers(home / "ollama", MARIO, base, **layers)
    with pytest.raises(ModelFileError, match="ollama pull mario:latest"):
        recipe_of(resolve("mario", Settings(data_dir=home / "data")))


def test_a_missing_layer_is_an_error(home: Path, base: Path) -> None:
    add_ollama_layers(home / "ollama", MARIO, base, system="Be short.")
    ref = resolve("mario", Settings(data_dir=home / "data"))
    for blob in base.parent.iterdir():
        if blob.read_bytes() == b"Be short.":
            blob.unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        recipe_of(ref)


@pytest.mark.parametrize("is_copy", [True, False])
def test_an_imported_model_keeps_its_layers(home: Path, base: Path, is_copy: bool) -> None:
    add_ollama_layers(home / "ollama", MARIO, base, **LAYERS)
    settings = Settings(data_dir=home / "data", cache_dir=home / "cache")
    plan = plan_import(find_importable("mario", settings), "", settings.models_dir)
    with Index(settings.cache_dir) as index:
        if is_copy:
            copy_model(plan, index, lambda _n_bytes: None)
        else:
            link_model(plan, index)
    assert read_recipe(plan.path) == RECIPE
    second = plan_import(resolve(str(plan.path), settings), "luigi", settings.models_dir)
    assert second.recipe == RECIPE


def test_a_model_with_an_adapter_names_it_and_is_not_imported_without(home: Path, base: Path) -> None:
    add_ollama_layers(home / "ollama", MARIO, base, adapter="an adapter")
    ref = resolve("mario", Settings(data_dir=home / "data"))
    [adapter] = adapters_of(ref)
    assert adapter.read_text() == "an adapter"
    with pytest.raises(ModelFileError, match="localllm run mario:latest"):
        plan_import(ref, "", home / "data" / "models")
