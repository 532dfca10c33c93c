from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Event, Fetching, ProjectorAdded
from app.library.hub.access import HubError, NotOnHubError
from app.library.hub.ollama_registry import registry_access
from app.library.hub.reference import OllamaReference, parse_reference
from app.library.local.index import Index
from app.library.local.recipe import NO_RECIPE, read_recipe
from app.library.local.resolve import resolve
from app.library.pulling import puller as pulling
from app.library.pulling.puller import Puller, plan_model_pull
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError
from tests.app.library.fetching import IMPATIENT
from tests.app.library.web_server import Page, WebServer
from tests.quantizer.gguf_projectors import tiny_projector

PARAMS = json.dumps({"temperature": 0.5, "stop": ["<|end|>"]}).encode()


@dataclass
class Registry:
    """A registry, and what one test pulls into."""

    web: WebServer
    models_dir: Path
    index: Index
    login: str = ""
    said: list[Event] = field(default_factory=list)

    def offer(self, name: str, tag: str, layers: Sequence[tuple[str, bytes]]) -> str:
        """Put a model into the registry; return the path of the blob of its first layer."""
        entries = []
        for kind, data in layers:
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            self.web.pages.setdefault(f"/v2/{name}/blobs/{digest}", Page(data, login=self.login))
            media_type = f"application/vnd.ollama.image.{kind}"
            entries.append({"mediaType": media_type, "digest": digest, "size": len(data)})
        manifest = {"schemaVersion": 2, "config": {"digest": "sha256:00"}, "layers": entries}
        self.web.pages[f"/v2/{name}/manifests/{tag}"] = Page(json.dumps(manifest).encode(), login=self.login)
        return f"/v2/{name}/blobs/{entries[0]['digest']}"

    async def pull(self, text: str, **environment: str) -> Path:
        reference = parse_reference(text)
        assert isinstance(reference, OllamaReference)
        access = registry_access(reference, {"OLLAMA_REGISTRY": self.web.url, **environment})
        options = DownloadOptions(retry=IMPATIENT)
        puller = Puller(access, self.index, options, self.said.append)
        return await puller.pull(lambda at: plan_model_pull(at, reference, self.models_dir, _none))

    def files(self) -> list[str]:
        found = (path for path in self.models_dir.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.models_dir)) for path in found)


def _none(_repository: object) -> Any:
    raise AssertionError("a model of Ollama has one quant")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(pulling, "QUICK_RETRIES", IMPATIENT)
    with WebServer() as web, Index(tmp_path) as index:
        yield Registry(web, tmp_path / "models", index)


async def test_a_model_comes_with_its_settings_and_the_name_that_ollama_gives_it(
    registry: Registry, model: bytes
) -> None:
    texts = [("system", b"You are Mario."), ("params", PARAMS), ("license", b"MIT"), ("license", b"Apache")]
    registry.offer("library/tiny", "1b", [("model", model), ("template", b"{{ .Prompt }}"), *texts])
    path = await registry.pull("ollama:tiny:1b")
    assert path == registry.models_dir / "ollama" / "tiny" / "tiny-1b.gguf"
    assert path.read_bytes() == model
    assert registry.index.sha256(path) == hashlib.sha256(model).hexdigest()
    assert registry.index.origin(path) == "ollama:tiny:1b"
    recipe = read_recipe(path)
    assert (recipe.system, recipe.license, recipe.template) == ("You are Mario.", "MIT\n\nApache", "")
    assert recipe.parameters == {"temperature": 0.5, "stop": ["<|end|>"]}


async def test_pulling_again_fetches_what_changed_alone(registry: Registry, model: bytes) -> None:
    blob = registry.offer("library/tiny", "latest", [("model", model), ("system", b"One.")])
    path = await registry.pull("ollama:tiny")
    n_before = registry.web.paths().count(blob)
    registry.offer("library/tiny", "latest", [("model", model), ("system", b"Two.")])
    assert await registry.pull("ollama:tiny:latest") == path
    assert registry.web.paths().count(blob) == n_before
    assert read_recipe(path).system == "Two."
    registry.offer("library/tiny", "latest", [("model", model + bytes(32))])
    await registry.pull("ollama:tiny")
    assert len(path.read_bytes()) == len(model) + 32
    assert read_recipe(path) == NO_RECIPE


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("ollama:me/own:v1", "me/own", "me/own/own-v1.gguf"),
        ("ollama:{host}/them/own:v1", "them/own", "them/own/own-v1.gguf"),
        ("ollama:own:V1.5_q4", "library/own", "ollama/own/own-V1.5_q4.gguf"),
    ],
)
async def test_namespaces_and_hosts_are_places(
    registry: Registry, model: bytes, text: str, name: str, place: str
) -> None:
    registry.offer(name, text.rpartition(":")[2], [("model", model)])
    text = text.format(host=registry.web.url.removeprefix("http://"))
    assert await registry.pull(text) == registry.models_dir / place


async def test_the_same_reference_names_the_model_afterwards(registry: Registry, model: bytes) -> None:
    registry.offer("library/tiny", "1b", [("model", model)])
    registry.offer("library/tiny", "2b", [("model", model + bytes(32))])
    paths = [await registry.pull(f"ollama:tiny:{tag}") for tag in ("1b", "2b")]
    settings = Settings(data_dir=registry.models_dir.parent)
    assert [resolve(f"ollama:tiny:{tag}", settings).path for tag in ("1b", "2b")] == paths
    assert resolve("tiny:2b", settings).path == paths[1]


async def test_a_projector_is_added_and_can_be_left_out(registry: Registry, tmp_path: Path, model: bytes) -> None:
    projector = tiny_projector(tmp_path / "p.gguf").read_bytes()
    registry.offer("library/sees", "1b", [("model", model), ("projector", projector)])
    await registry.pull("ollama:sees:1b")
    assert registry.files() == ["ollama/sees/mmproj-sees-1b.gguf", "ollama/sees/sees-1b.gguf"]
    assert any(isinstance(event, ProjectorAdded) for event in registry.said)


async def test_a_redirect_to_another_host_gets_no_login(registry: Registry, model: bytes) -> None:
    registry.login = f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    blob = registry.offer("library/tiny", "1b", [("model", model)])
    registry.web.pages["/storage"] = Page(model)
    moved = {"Location": f"{registry.web.other_url}/storage"}
    registry.web.pages[blob] = Page(status=307, headers=moved, login=registry.login)
    with pytest.raises(HubError, match="may not be read without a login"):
        await registry.pull("ollama:tiny:1b")
    path = await registry.pull("ollama:tiny:1b", OLLAMA_REGISTRY=registry.web.url.replace("//", "//me:p%40ss@"))
    assert path.read_bytes() == model
    sent = {path: headers.get("Authorization", "") for path, headers in registry.web.log}
    assert sent[blob] == registry.login
    assert sent["/storage"] == ""


async def test_a_blob_with_another_hash_is_refused_and_leaves_nothing(registry: Registry, model: bytes) -> None:
    blob = registry.offer("library/tiny", "1b", [("model", model)])
    registry.web.pages[blob].body = model[:-1] + b"!"
    with pytest.raises(HubError, match="wrong hash"):
        await registry.pull("ollama:tiny:1b")
    assert not any(name.endswith(".gguf") and ".fetching" not in name for name in registry.files())


async def test_a_blob_that_ends_early_is_resumed_by_the_next_pull(registry: Registry, model: bytes) -> None:
    large = model + hashlib.shake_128(b"a").digest(1 << 20)
    blob = registry.offer("library/tiny", "1b", [("model", large)])
    registry.web.pages[blob].ends_at = 1 << 19
    with pytest.raises(HubError, match="pull it again to resume"):
        await registry.pull("ollama:tiny:1b")
    registry.web.pages[blob].ends_at = 1 << 62
    assert (await registry.pull("ollama:tiny:1b")).read_bytes() == large
    assert [event for event in registry.said if isinstance(event, Fetching)][-1].n_done > 0


async def test_a_missing_tag_names_those_that_are_like_it(registry: Registry, model: bytes) -> None:
    registry.offer("library/tiny", "0.6b-q4_K_M", [("model", model)])
    tags = json.dumps({"name": "library/tiny", "tags": ["0.6b-q4_K_M", "0.6b", "latest", 3]}).encode()
    with pytest.raises(NotOnHubError, match=r"ollama:tiny:7b is not in the registry\. Check the spelling"):
        await registry.pull("ollama:tiny:7b")
    registry.web.pages["/v2/library/tiny/tags/list"] = Page(tags)
    with pytest.raises(NotOnHubError, match=r"Did you mean ollama:tiny:0\.6b or ollama:tiny:0\.6b-q4_K_M\? It has"):
        await registry.pull("ollama:tiny:0.6")
    with pytest.raises(NotOnHubError, match=r"registry\. It has 0\.6b, 0\.6b-q4_K_M, latest"):
        await registry.pull("ollama:tiny:xxxxxxxx")


LAYERS: dict[str, tuple[Sequence[tuple[str, bytes]], str]] = {
    "no model": ([("params", b"{}")], "no GGUF"),
    "two models": ([("model", b"a"), ("model", b"b")], "2 files"),
    "an adapter": ([("model", b"a"), ("adapter", b"b")], "adapter.*ollama pull tiny:1b"),
    "tensors of another engine": ([("tensor", b"a"), ("json", b"b")], "no GGUF"),
    "parameters that are no object": ([("model", b"a"), ("params", b"[1]")], "settings of"),
    "parameters that are no JSON": ([("model", b"a"), ("params", b"{")], "settings of"),
    "messages of unknown roles": ([("model", b"a"), ("messages", b'[{"role": "x", "content": ""}]')], "settings of"),
    "a prompt that is no text": ([("model", b"a"), ("system", b"\xff")], "not text"),
    "an endless prompt": ([("model", b"a"), ("system", b"a" * ((1 << 20) + 1))], "larger than 1 MiB"),
    "no GGUF": ([("model", b"<html>")], "tiny-1b"),
}


@pytest.mark.parametrize("name", LAYERS)
async def test_layers_that_cannot_be_used_are_refused_and_leave_nothing(registry: Registry, name: str) -> None:
    layers, reason = LAYERS[name]
    registry.offer("library/tiny", "1b", layers)
    with pytest.raises(ModelFileError, match=reason):
        await registry.pull("ollama:tiny:1b")
    assert registry.files() == []


async def test_a_setting_with_another_hash_is_refused(registry: Registry, model: bytes) -> None:
    registry.offer("library/tiny", "1b", [("model", model), ("system", b"Be good.")])
    digest = hashlib.sha256(b"Be good.").hexdigest()
    registry.web.pages[f"/v2/library/tiny/blobs/sha256:{digest}"].body = b"Be evil."
    with pytest.raises(ModelFileError, match="SHA-256 is wrong"):
        await registry.pull("ollama:tiny:1b")


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"layers": 3},
        {"layers": [{}]},
        {"layers": [{"mediaType": "m", "digest": "sha256:../../etc", "size": 3}]},
        {"layers": [{"mediaType": "m", "digest": "sha256:", "size": 3}]},
        {"layers": [{"mediaType": "m", "digest": f"md5:{'a' * 64}", "size": 3}]},
        {"layers": [{"mediaType": "m", "digest": f"sha256:{'a' * 64}", "size": -3}]},
        {"layers": [{"mediaType": "m", "digest": f"sha256:{'a' * 64}", "size": True}]},
        {"layers": [{"mediaType": "m", "digest": f"sha256:{'a' * 64}"}]},
        [],
    ],
)
async def test_a_manifest_that_is_invalid_is_refused(registry: Registry, manifest: Any) -> None:
    registry.web.pages["/v2/library/tiny/manifests/1b"] = Page(json.dumps(manifest).encode())
    with pytest.raises(ModelFileError, match="manifest of ollama:tiny:1b is invalid"):
        await registry.pull("ollama:tiny:1b")


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({}, "https://registry.ollama.ai"),
        ({"OLLAMA_REGISTRY": "https://me:pw@mirror.example/"}, "https://mirror.example"),
        ({"OLLAMA_REGISTRY": "http://127.0.0.1:5000"}, "http://127.0.0.1:5000"),
    ],
)
def test_the_registry_is_the_environments(environment: Mapping[str, str], endpoint: str) -> None:
    assert registry_access(OllamaReference("", "library", "tiny", "1b"), environment).endpoint == endpoint
    other = OllamaReference("other.example:5000", "library", "tiny", "1b")
    assert registry_access(other, environment).endpoint == "https://other.example:5000"


@pytest.mark.parametrize(
    "url",
    [
        "mirror.example",
        "ftp://mirror.example",
        "https://",
        "http://mirror.example",
        "https://[::",
        "https://a:pw@b:port",
        "https://a:pw@b/?c",
    ],
)
def test_an_address_that_is_no_registry_is_refused_without_its_login(url: str) -> None:
    with pytest.raises(UsageError, match=r"OLLAMA_REGISTRY|not encrypted") as caught:
        registry_access(OllamaReference("", "library", "tiny", "1b"), {"OLLAMA_REGISTRY": url})
    assert "pw" not in str(caught.value)
