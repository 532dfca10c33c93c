"""Which model answers to a name: its own names, and those that no local model can have."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.engine.chat_template.template_process import TemplateProcess
from app.library.local.resolve import UnknownModelError, resolve
from app.service.models.manager import ModelManager
from app.service.models.model_file import read_model_file
from app.settings.settings import Settings
from tests.app.service.models.managed import CODER, CODER_STEM, SIZES, WORDS, calling, library_settings, managing
from tests.app.service.pool.memory_fake import FakeMemory
from tests.app.thread_worker import thread_worker
from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path) -> Settings:
    return library_settings(tmp_path, tiny_model)


async def test_an_unknown_name_lists_the_models(settings: Settings) -> None:
    async with managing(settings) as models:
        with pytest.raises(UnknownModelError, match=r"first.*second"):
            await models.named("unknown")


# What clients send to any server (kept with their versions in test_placeholder_names.py), by the dialect they speak.
ASKING: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-3.5-turbo": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    "gpt-4o-mini": ("/v1/completions", WORDS),
    "gpt-5-codex": ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    "claude-sonnet-4-5-20250929": (
        "/v1/messages?beta=true",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    ),
    "local-model": ("/api/v0/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    "llama-server": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    "default": ("/api/chat", {"messages": [{"role": "user", "content": "hi"}], "stream": False}),
    "gpt-4": ("/api/generate", {"prompt": "hi", "stream": False, "options": {"num_predict": 2}}),
}


@pytest.mark.parametrize("name", ASKING)
async def test_a_name_of_no_local_model_gets_the_default_which_the_answer_names(settings: Settings, name: str) -> None:
    path, body = ASKING[name]
    async with managing(settings) as models, calling(models) as http:
        answer = await http.post(path, json={"model": name, **body})
        assert (answer.status_code, answer.json()["model"]) == (200, "first"), answer.text
        unlike = await http.post(path, json={"model": "firs", **body})
        assert unlike.status_code == 404
        assert "Did you mean first?" in unlike.text
    async with managing(replace(settings, any_name=False)) as models, calling(models) as http:
        assert (await http.post(path, json={"model": name, **body})).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "n_events"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}, 2),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}, 1),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}, 2),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 2}}, 2),
        ("/api/generate", {"prompt": "hi", "options": {"num_predict": 2}}, 2),
    ],
)
async def test_a_streamed_answer_names_the_model_that_answers_as_well(
    settings: Settings, path: str, body: dict[str, Any], n_events: int
) -> None:
    async with managing(settings) as models, calling(models) as http:
        answer = await http.post(path, json={"model": "default", "stream": True, **body})
        assert answer.status_code == 200
        assert answer.text.count('"model":"first"') >= n_events
        assert '"model":"default"' not in answer.text


@pytest.mark.parametrize("default", ["first", "guide"])
@pytest.mark.parametrize("used", [[], ["second"], ["second", "third"], ["first", "second", "third"]], ids="-".join)
async def test_a_name_of_no_local_model_means_the_default_whatever_others_asked(
    settings: Settings, used: list[str], default: str
) -> None:
    """Where that is the guide, which nobody chose, the client learns it."""
    memory = FakeMemory(100, {**SIZES, "guide-Q8_0": 1})
    models = ModelManager(settings, thread_worker(), TemplateProcess(), memory)
    ref = resolve(default, settings)
    models.add(ref, read_model_file(ref.path)).load()
    async with calling(models) as http:
        for name in used:
            assert (await http.post("/v1/completions", json={"model": name, **WORDS})).status_code == 200
        if used:  # as the app does for the model that its user picks
            picked = await http.post("/api/localllm/load", json={"model": used[-1]})
            assert picked.is_success, picked.text
        for name in ("gpt-4o", "default", "claude-sonnet-4-5", ""):
            answer = await http.post("/v1/completions", json={"model": name, **WORDS})
            assert (answer.status_code, answer.json()["model"]) == (200, default)
            is_told = any("built-in" in warning for warning in answer.json().get("warnings", ()))
            assert is_told == (default == "guide" and name != "")
        for model in models.opened:
            model.keep_alive.release()
        again = await http.post("/v1/completions", json={"model": "gpt-4o", **WORDS})
        assert again.json()["model"] == default, "after the idle time, too"
    await models.close()


async def test_a_name_of_no_local_model_means_an_embedding_model_where_vectors_are_wanted(settings: Settings) -> None:
    def pools(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.pooling_type", 1)

    tiny_llama(settings.models_dir / "me" / "second" / "second.gguf", pools)
    body = {"model": "text-embedding-3-small", "input": "hello"}  # langchain-openai 1.0, LlamaIndex 0.14
    async with managing(settings, total_bytes=100) as models, calling(models) as http:
        for path in ("/v1/embeddings", "/api/embed"):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["model"]) == (200, "second"), "it need not be loaded before"
        chat = await http.post("/v1/completions", json={"model": "gpt-4o", **WORDS})
        assert chat.json()["model"] == "first", "an embedding model does not answer"
        tiny_llama(settings.models_dir / "me" / "third" / "third.gguf", pools)
        refused = await http.post("/v1/embeddings", json=body)
        assert refused.status_code == 404, "which of two is meant, nobody can know"
        assert "third" in refused.text


async def test_a_name_of_a_local_model_is_that_model_whatever_it_is_called(
    settings: Settings, tiny_model: Path
) -> None:
    shutil.copy(tiny_model, settings.models_dir / "gpt-4o.gguf")
    async with managing(settings) as models:
        assert (await models.answering("gpt-4o")).ref.id == "gpt-4o"
        assert (await models.answering("gpt-4o:latest")).ref.id == "gpt-4o"


LISTS = {"/v1/models": ("data", "id"), "/api/tags": ("models", "name"), "/api/v0/models": ("data", "id")}


@pytest.fixture
def coder(settings: Settings, tiny_model: Path) -> str:
    """Return the id of a model named as on the hub."""
    folder = settings.models_dir / "Qwen" / "Qwen2.5-Coder-7B-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(tiny_model, folder / f"{CODER_STEM}.gguf")
    return CODER


async def test_every_dialect_lists_the_same_ids(settings: Settings, coder: str) -> None:
    async with managing(settings) as models, calling(models) as http:
        listed = {
            path: [entry[field] for entry in (await http.get(path)).json()[items]]
            for path, (items, field) in LISTS.items()
        }
    assert set(map(tuple, listed.values())) == {tuple(listed["/api/tags"])}
    assert {coder, "first", "second"} <= {*listed["/api/tags"]}


async def test_a_model_answers_to_all_its_names(settings: Settings, coder: str) -> None:
    aliases = [
        CODER.upper(),
        f"{CODER}:latest",
        "qwen2.5-coder",
        "qwen2.5-coder:latest",
        CODER_STEM,
        f"{CODER_STEM}.gguf",
        "qwen/qwen2.5-coder-7b-gguf",
        f"Qwen/Qwen2.5-Coder-7B-GGUF/{CODER_STEM}",
    ]
    async with managing(settings) as models, calling(models) as http:
        for alias in aliases:
            answer = await http.post("/v1/completions", json={"model": alias, **WORDS})
            assert (answer.status_code, answer.json()["model"]) == (200, coder), alias
            assert (await http.get(f"/v1/models/{alias}")).json()["id"] == coder
        assert len(models.opened) == 2, "by whatever name, it is one model"


async def test_another_link_to_a_file_of_the_same_name_is_the_same_model(settings: Settings, tmp_path: Path) -> None:
    """So are a model of Ollama's and the link that imports it."""
    link = tmp_path / "ollama" / "second.gguf"
    link.parent.mkdir()
    link.hardlink_to(settings.models_dir / "me" / "second" / "second.gguf")
    other = shutil.copy(settings.models_dir / "me" / "second" / "second.gguf", tmp_path / "second.gguf")
    async with managing(settings) as models:
        ids = [(await models.load(name)).ref.id for name in ("second", str(link), str(other))]
    assert ids == ["second", "second", "second-2"]


async def test_a_404_lists_the_ids_in_the_form_of_its_dialect(settings: Settings, coder: str) -> None:
    paths = {
        "/v1/completions": ("error", "message"),
        "/v1/messages": ("error", "message"),
        "/completion": ("error", "message"),
        "/api/v0/completions": ("error", "message"),
        "/api/generate": ("error",),
    }
    async with managing(settings) as models, calling(models) as http:
        for path, keys in paths.items():
            messages = [{"role": "user", "content": "hello"}]
            answer = await http.post(path, json={"model": "unknown", "messages": messages, **WORDS})
            assert answer.status_code == 404, path
            message: Any = answer.json()
            for key in keys:
                message = message[key]
            assert coder in message


async def test_ollamas_generate_continues_the_text_of_a_model_without_a_template(settings: Settings) -> None:
    """As Ollama does, whose template for it is the prompt alone."""

    def without_template(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop("tokenizer.chat_template", None)

    tiny_llama(settings.models_dir / "me" / "second" / "second.gguf", without_template)
    body = {"model": "second", "prompt": "<say>on</say>", "stream": False}
    async with managing(settings, total_bytes=100) as models, calling(models) as http:
        answer = await http.post("/api/generate", json={**body, "system": "Be brief."})
        assert (answer.status_code, answer.json()["response"]) == (200, "on")
        assert answer.json()["prompt_eval_count"] == len("<say>on</say>"), "nothing but the prompt"
        chat = await http.post(
            "/v1/chat/completions", json={"model": "second", "messages": [{"role": "user", "content": "x"}]}
        )
        assert chat.status_code == 400
