"""The official Ollama client pulls, makes, copies and deletes models, from a hub of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import ollama
import pytest
from running import RunningService

sys.path[:0] = [str(Path(__file__).parents[2] / "library")]

from hub_repos import HubRepo  # noqa: E402
from hub_server import HubServer  # noqa: E402

MIB = 1 << 20


@pytest.fixture(scope="module")
def hub(tiny_model: Path) -> Iterator[HubServer]:
    model = tiny_model.read_bytes()
    repos = {
        "org/small": {"small-Q4_0.gguf": model},
        "org/large": {"large-Q8_0.gguf": model + bytes(3 * MIB)},
        "org/two": {"two-Q4_0.gguf": model, "two-Q8_0.gguf": model + bytes(64)},
    }
    with HubServer(*(HubRepo.of(name, files) for name, files in repos.items())) as server:
        yield server


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ollama")


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService], hub: HubServer, data: Path) -> RunningService:
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(data / "hf")}
    return start_service(variables, data_dir=str(data / "data"), cache_dir=str(data / "cache"))


@pytest.fixture(scope="module")
def client(own: RunningService) -> Iterator[ollama.Client]:
    with closing(ollama.Client(host=own.url, trust_env=False)) as client:
        yield client


def names(client: ollama.Client) -> set[str | None]:
    return {model.model for model in client.list().models}


def test_a_pull_tells_what_ollama_tells_and_the_model_is_here(client: ollama.Client, hub: HubServer) -> None:
    *course, last = client.pull("hf.co/org/two:Q4_0", stream=True)
    file = hub.repos["org/two"].files["two-Q4_0.gguf"]
    assert last.status == "success"
    assert course[0].status == "pulling manifest"
    assert course[-1].status == "verifying sha256 digest"
    pulling = course[1:-1]
    assert {part.status for part in pulling} == {f"pulling {file.sha256[:12]}"}
    assert {(part.digest, part.total) for part in pulling} == {(f"sha256:{file.sha256}", file.n_bytes)}
    assert pulling[-1].completed == file.n_bytes
    assert "two:q4_0" in names(client)


def test_a_pull_that_is_not_streamed_waits_for_the_end(client: ollama.Client, data: Path) -> None:
    assert client.pull("org/small").status == "success"
    assert (data / "data" / "models" / "org" / "small" / "small-Q4_0.gguf").is_file()


def test_a_model_is_asked_for_by_the_words_that_pulled_it(client: ollama.Client) -> None:
    for name in ("hf.co/org/two:Q4_0", "org/two:q4_0", "two:q4_0"):
        assert client.show(name).modelinfo
    assert client.generate("hf.co/org/two:Q4_0", "hello", options={"num_predict": 2}).response


def test_what_is_here_and_comes_from_nowhere_needs_no_pull(client: ollama.Client) -> None:
    assert client.pull("guide").status == "success"


def test_a_model_that_nobody_has_is_said_before_or_after_the_stream_begins(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as unknown:
        client.pull("no-such-name:7b", stream=False)
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="Check the spelling"):
        list(client.pull("org/nothing:Q4_0", stream=True))


def test_a_client_that_leaves_ends_its_pull_and_the_next_goes_on_from_there(
    client: ollama.Client, own: RunningService, hub: HubServer
) -> None:
    hub.bytes_per_s = MIB
    before = hub.n_sent()
    parts = client.pull("org/large", stream=True)
    for part in parts:
        if (part.completed or 0) > MIB:
            break
    parts.close()
    jobs = own.http.get("/api/localllm/jobs").json()["jobs"]
    (job,) = [job for job in jobs if job["arguments"]["reference"] == "org/large"]
    with own.http.stream("GET", f"/api/localllm/jobs/{job['id']}/events") as response:
        *_, last = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert '"state":"cancelled"' in last
    hub.bytes_per_s = 0
    assert client.pull("org/large").status == "success"
    assert hub.n_sent() - before <= 3 * MIB + MIB + 64 * 1024


def test_a_model_is_copied_quantized_and_deleted(client: ollama.Client, data: Path) -> None:
    client.copy("tiny", "mine:first")
    with pytest.raises(ollama.ResponseError, match="exists already") as twice:
        client.copy("tiny", "mine:first")
    assert twice.value.status_code == 409
    assert client.show("mine:first").details == client.show("tiny").details
    assert str(data) not in twice.value.error
    assert client.create("second", from_="tiny").status == "success"
    *course, last = client.create("smaller:q8", from_="tiny", quantize="q8_0", stream=True)
    assert last.status == "success"
    assert course[-1].status == "quantizing to Q8_0"
    made = data / "data" / "models" / "local"
    assert {path.name for path in made.glob("*/*")} == {"mine-first.gguf", "second.gguf", "smaller-q8.gguf"}
    for name in ("mine:first", "second", "smaller:q8"):
        client.delete(name)
    assert list(made.glob("*/*")) == []
    with pytest.raises(ollama.ResponseError, match="not found") as gone:
        client.delete("second")
    assert gone.value.status_code == 404


def test_what_we_did_not_place_is_not_deleted(client: ollama.Client, tiny_model: Path) -> None:
    for name in ("guide", "tiny"):
        with pytest.raises(ollama.ResponseError) as refused:
            client.delete(name)
        assert refused.value.status_code == 403
        assert str(tiny_model.parent) not in refused.value.error
    assert tiny_model.is_file()


def test_a_loaded_model_is_let_go_before_it_is_deleted(client: ollama.Client) -> None:
    client.copy("tiny", "passing")
    client.generate("passing", "hello", options={"num_predict": 2})
    client.delete("passing")
    assert "passing" not in {model.model for model in client.ps().models}
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.generate("passing", "hello")


@pytest.mark.parametrize("what", [{"system": "Be short."}, {"parameters": {"seed": 1}}, {"template": "{{ .Prompt }}"}])
def test_what_a_model_does_not_keep_here_is_refused(client: ollama.Client, what: dict) -> None:
    with pytest.raises(ollama.ResponseError, match=next(iter(what))) as refused:
        client.create("other", from_="tiny", **what)
    assert refused.value.status_code == 400


@pytest.mark.parametrize("name", ["../up", "a/b/c/d", "con", ""])
def test_a_name_that_leaves_the_library_is_refused(client: ollama.Client, name: str) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        client.copy("tiny", name or "..")
    assert refused.value.status_code == 400
