"""The official Ollama client pulls, makes, copies and deletes models, from a hub of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import ollama
import pytest

from app.protocol.errors import RequestError
from app.service.api.ollama.requests import CreateBody
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.running import RunningService

MIB = 1 << 20
JINJA = "{% for message in messages %}{{ message.role }}={{ message.content }} {% endfor %}>"


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


def test_a_pull_reports_as_ollama_does_and_the_model_is_local(client: ollama.Client, hub: HubServer) -> None:
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


def test_a_model_is_found_by_the_name_that_pulled_it(client: ollama.Client) -> None:
    for name in ("hf.co/org/two:Q4_0", "org/two:q4_0", "two:q4_0"):
        assert client.show(name).modelinfo
    assert client.generate("hf.co/org/two:Q4_0", "hello", options={"num_predict": 2}).response


def test_a_local_model_without_a_source_needs_no_pull(client: ollama.Client) -> None:
    assert client.pull("guide").status == "success"


def test_a_missing_model_is_reported_before_or_after_the_stream_begins(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as unknown:
        client.pull("no-such-name:7b", stream=False)
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="Check the spelling"):
        list(client.pull("org/nothing:Q4_0", stream=True))


@pytest.mark.slow
def test_a_client_that_disconnects_ends_its_pull_and_the_next_resumes(
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
    with pytest.raises(ollama.ResponseError, match="not found") as missing:
        client.delete("second")
    assert missing.value.status_code == 404


def test_of_two_creations_of_one_name_one_is_refused(own: RunningService) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [
            threads.submit(own.http.post, "/api/create", json={"model": "raced", "from": "guide", "stream": False})
            for _ in range(8)
        ]
    assert sorted(each.result().status_code for each in asked) == [200, *[409] * 7]
    own.http.request("DELETE", "/api/delete", json={"model": "raced"}).raise_for_status()


def test_models_outside_the_library_are_not_deleted(client: ollama.Client, tiny_model: Path) -> None:
    for name in ("guide", "tiny"):
        with pytest.raises(ollama.ResponseError) as refused:
            client.delete(name)
        assert refused.value.status_code == 403
        assert str(tiny_model.parent) not in refused.value.error
    assert tiny_model.is_file()


def test_a_loaded_model_is_unloaded_before_it_is_deleted(client: ollama.Client) -> None:
    client.copy("tiny", "passing")
    client.generate("passing", "hello", options={"num_predict": 2})
    client.delete("passing")
    assert "passing" not in {model.model for model in client.ps().models}
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.generate("passing", "hello")


@pytest.fixture
def made(client: ollama.Client) -> Iterator[str]:
    """A model with everything that Ollama's client can give it."""
    client.create(
        "made:first",
        from_="tiny",
        system="Be short.",
        template=JINJA,
        license=["MIT", "and so on"],
        parameters={"temperature": 0, "seed": 7, "num_predict": 6, "stop": ["\n\n", "END"], "num_ctx": 4096},
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
    )
    yield "made:first"
    client.delete("made:first")


def test_a_model_is_made_with_a_recipe_and_shows_it(client: ollama.Client, made: str, data: Path) -> None:
    assert made.replace(":", "-") in names(client)
    shown = client.show(made)
    assert shown.parameters.splitlines() == [
        "temperature                    0",
        "seed                           7",
        "num_predict                    6",
        'stop                           "\\n\\n"',
        'stop                           "END"',
        "num_ctx                        4096",
    ]
    assert JINJA in shown.template
    assert (shown.license, shown.details.parent_model) == ("MIT\n\nand so on", "tiny")
    fields = client._client.post("/api/show", json={"model": made}).json()
    assert (fields["system"], [message["content"] for message in fields["messages"]]) == ("Be short.", ["Hi", "Ho"])
    assert shown.modelfile.splitlines()[0] == "FROM tiny"
    assert 'SYSTEM """Be short."""' in shown.modelfile
    assert "PARAMETER seed 7" in shown.modelfile
    plain = client.show("tiny")
    assert (plain.parameters, plain.modelfile) == ("", "FROM tiny\n")


CHAT = {"messages": [{"role": "user", "content": "hello"}]}
DIALECTS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/v1/fim/completions": {"prompt": "hello", "suffix": "you"},
    "/v1/messages": CHAT | {"max_tokens": 6},  # which that API requires
    "/v1/responses": {"input": "hello"},
    "/api/chat": CHAT | {"stream": False},
    "/api/generate": {"prompt": "hello", "stream": False},
    "/api/v0/chat/completions": CHAT,
    "/completion": {"prompt": "hello"},
    "/infill": {"input_prefix": "hello", "input_suffix": "you"},
}


def _n_output(answer: dict[str, Any]) -> int:
    usage = answer.get("usage", answer)
    names = ("completion_tokens", "output_tokens", "eval_count", "tokens_predicted")
    return next(usage[name] for name in names if name in usage)


@pytest.mark.parametrize("path", DIALECTS)
def test_a_recipe_holds_in_every_dialect(own: RunningService, made: str, path: str) -> None:
    body = DIALECTS[path] | {"model": made}
    answers = [own.http.post(path, json=body) for _ in range(2)]
    if "cannot fill in the middle" in answers[0].text:
        pytest.skip("the model cannot fill in the middle")
    first, again = (answer.json() for answer in answers)
    assert 0 < _n_output(first) <= 6
    assert _words(first) == _words(again), "at temperature 0"


def _words(answer: Any) -> list[str]:
    """Return every text in an answer but for ids."""
    if isinstance(answer, dict):
        return [word for name, value in answer.items() if not name.endswith("id") for word in _words(value)]
    if isinstance(answer, list):
        return [word for value in answer for word in _words(value)]
    return [answer] if isinstance(answer, str) and not answer[:4].isdigit() else []


def test_a_requests_own_fields_override_the_recipe(client: ollama.Client, made: str) -> None:
    answer = client.generate(made, "hello", options={"num_predict": 3, "stop": ["never"]})
    assert answer.eval_count == 3


@pytest.mark.parametrize("is_own", [False, True])
def test_a_recipe_begins_every_conversation(own: RunningService, made: str, is_own: bool) -> None:
    system = [{"role": "system", "content": "Be long."}] if is_own else []
    body = {"model": made, "messages": [*system, {"role": "user", "content": "hello"}]}
    prompt = own.http.post("/apply-template", json=body).json()["prompt"]
    begun = "system=Be long." if is_own else "system=Be short."
    assert prompt == f"{begun} user=Hi assistant=Ho user=hello >"


def test_a_created_model_and_a_copy_inherit_the_recipe(client: ollama.Client, made: str, data: Path) -> None:
    client.create("grown", from_=made, system="Be kind.", parameters={"seed": 8})
    client.copy("grown", "twin")
    for name in ("grown", "twin"):
        shown = client.show(name)
        assert 'SYSTEM """Be kind."""' in shown.modelfile
        assert "seed                           8" in shown.parameters
        assert "temperature                    0" in shown.parameters
    client.create("small", from_=made, quantize="q8_0")
    assert 'SYSTEM """Be short."""' in client.show("small").modelfile
    for name in ("grown", "twin", "small"):
        client.delete(name)
    left = {path.name for path in (data / "data" / "models" / "local").glob("*/*")}
    assert left == {"made-first.gguf", "made-first.recipe.json"}


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"template": "{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}"}, "Jinja template"),
        ({"template": "{{- range .Messages }}{{ .Content }}{{ end }}"}, "Go template"),
        ({"template": "{% for x in %}"}, "template"),
        ({"template": "Say something."}, "leaves out"),
        ({"parameters": {"temperature": -3}}, "temperature"),
        ({"parameters": {"seed": "soon"}}, "seed"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"system": "x" * (1 << 20)}, "larger than 1 MiB"),
    ],
)
def test_an_unsupported_recipe_is_refused_with_the_reason(client: ollama.Client, what: dict, why: str) -> None:
    with pytest.raises(ollama.ResponseError, match=why) as refused:
        client.create("other", from_="tiny", **what)
    assert refused.value.status_code == 400
    assert "other" not in names(client)


@pytest.mark.parametrize("text", ["block.text", "- block['text']", "template | trim", "range (2) | list"])
def test_a_jinja_template_may_have_variables_that_are_words_of_go(text: str) -> None:
    """As those of Apertus, Mistral Small 3.2, Ministral 3, Devstral and Spark 2.5."""
    CreateBody.model_validate({"from": "tiny", "template": f"{{{{{text} }}}}"}).check()


@pytest.mark.parametrize("text", ["if eq .Role 1", "end", "- else ", "range .Messages", 'template "x" .', "with $x"])
def test_a_template_with_actions_of_go_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="Go template"):
        CreateBody.model_validate({"from": "tiny", "template": f"{{{{{text} }}}}"}).check()


@pytest.mark.parametrize(
    "what", [{"files": {"a.gguf": "sha256:" + "0" * 64}}, {"adapters": {"a.gguf": "sha256:" + "0" * 64}}]
)
def test_a_model_of_files_that_were_sent_is_refused(client: ollama.Client, what: dict) -> None:
    with pytest.raises(ollama.ResponseError, match=next(iter(what))) as refused:
        client.create("other", **what)
    assert refused.value.status_code == 400


def test_a_path_is_no_name_of_a_model(client: ollama.Client, tiny_model: Path) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as refused:
        client.create("other", from_=str(tiny_model), system="x")
    assert refused.value.status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../up", "a/b/c/d", "con", ""])
def test_a_name_outside_the_library_is_refused(client: ollama.Client, name: str) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        client.copy("tiny", name or "..")
    assert refused.value.status_code == 400
