from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.library.local.model_files import ModelRef
from app.service.models.model_file import InfillTokens, infill_tokens_of, is_placeholder, read_attachments
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
    attached = read_attachments(settings, ModelRef("tiny", tiny_model))
    assert attached.lora == ((str(plain), "style"), (str(odd), "a=b"))
    assert attached.control_vectors == ((str(vector), -0.5), (str(vector), 1.0))


@pytest.mark.parametrize("scale", ["strong", "nan", "1e9"])
def test_an_invalid_scale_is_a_usage_error(tmp_path: Path, tiny_model: Path, scale: str) -> None:
    vector = control_vector(tmp_path / "vector.gguf")
    with pytest.raises(UsageError, match="scale"):
        read_attachments(Settings(control_vector=(f"{vector}={scale}",)), ModelRef("tiny", tiny_model))


@pytest.mark.parametrize("setting", ["lora", "control_vector"])
def test_an_invalid_file_stops_the_start(tiny_model: Path, setting: str) -> None:
    with pytest.raises(ModelFileError):
        read_attachments(Settings(**{setting: (str(tiny_model),)}), ModelRef("tiny", tiny_model))  # type: ignore[arg-type]


def test_a_draft_model_is_found_by_name_and_validated(tmp_path: Path, tiny_model: Path) -> None:
    assert read_attachments(Settings(draft=str(tiny_model)), ModelRef("tiny", tiny_model)).draft_path == str(tiny_model)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_model.read_bytes()[:200])
    with pytest.raises(ModelFileError):
        read_attachments(Settings(draft=str(broken)), ModelRef("tiny", tiny_model))


def test_no_draft_model_is_read_without_a_name_and_for_the_word_none(tiny_model: Path) -> None:
    for draft in ("", "none", "copy"):
        attached = read_attachments(Settings(draft=draft), ModelRef("tiny", tiny_model))
        assert (attached.draft_path, attached.uses_copy) == ("", draft == "copy")


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


# Each is the name that the client sends by default, or the one that its documentation tells users to take.
SENT_BY_CLIENTS = {
    "gpt-3.5-turbo": "langchain-openai 1.0, Haystack 2",
    "gpt-4o-mini": "LlamaIndex 0.14, AI SDK's examples",
    "gpt-4o": "openai-agents 0.4, pydantic-ai 1.x",
    "gpt-4.1-2025-04-14": "openai 2.x",
    "gpt-5-codex": "Codex 0.50",
    "gpt-5.1-codex-max": "Codex 0.60",
    "o4-mini": "aider 0.86",
    "chatgpt-4o-latest": "openai 2.x",
    "text-embedding-ada-002": "langchain-openai 1.0",
    "text-embedding-3-small": "LlamaIndex 0.14",
    "claude-sonnet-4-5-20250929": "Claude Code 2.0",
    "claude-haiku-4-5-20251001": "Claude Code 2.0, its small model",
    "claude-opus-4-1[1m]": "Claude Code 2.0",
    "sonnet": "aider 0.86, an alias",
    "anthropic/claude-sonnet-4": "opencode 1.0 by OpenRouter",
    "openrouter/anthropic/claude-3.7-sonnet": "LiteLLM 1.79",
    "gemini-2.5-flash": "Open WebUI's task model",
    "models/gemini-2.0-flash": "google-genai",
    "qwen3-coder-plus": "qwen-code 0.2",
    "coder-model": "qwen-code 0.4",
    "deepseek-chat": "aider 0.86",
    "codestral-latest": "minuet-ai.nvim 0.8",
    "mistral-small": "Haystack 2",
    "local-model": "LM Studio's examples",
    "lmstudio": "Continue 1.2",
    "llama-server": "llama.vscode",
    "llama.cpp": "Continue 1.2, llama.cpp",
    "default": "llama-cpp-python's examples, instructor",
    "default_model": "vLLM's clients",
    "gpt-4:latest": "Ollama's clients append a tag",
    "openai/gpt-4o": "LiteLLM 1.79",
    "openai/local-model": "smolagents 1.22",
    "my-model": "documentation",
    "model-1": "documentation",
    "test": "gptel",
    "localllm": "documentation",
}
# What a person may have, have had, or mean to fetch: another model must not answer for it.
OF_MODELS = """
gpt-oss:20b gpt-oss-20b gpt-oss openai/gpt-oss-120b gpt-j-6b gpt2 llama llama2 llama3.2 llama3.2:3b llama-3.2-1b qwen3
qwen3:8b qwen2.5-coder qwen3-coder:30b Qwen/Qwen3-8B-GGUF deepseek-coder deepseek-r1 mistral mistral-nemo kimi-k2
mistral-7b-instruct-v0.3.Q4_K_M.gguf nomic-embed-text gemma3 phi-4 codellama tinyllama mario coder guide nope unknown
claudia my-mario sonnet-13b haiku-writer x.gguf model.gguf ./model.gguf /models/model.gguf 7b 2
"""


@pytest.mark.parametrize("name", SENT_BY_CLIENTS)
def test_a_name_that_clients_send_unasked_means_no_model(name: str) -> None:
    assert is_placeholder(name)
    assert is_placeholder(name.upper())


@pytest.mark.parametrize("name", OF_MODELS.split())
def test_a_name_that_a_local_model_can_have_means_that_model(name: str) -> None:
    assert not is_placeholder(name)


@pytest.mark.slow
def test_a_long_name_is_judged_at_once() -> None:
    assert not is_placeholder("my-" * 100_000)
    assert not is_placeholder("openai/" * 100_000)
