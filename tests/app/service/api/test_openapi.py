"""Every route answers as the OpenAPI document says: a service over the fake engine, a hub of ours, and all that a route
may answer held against its schema."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest
from jsonschema import Draft202012Validator

from app.common.service_identity import ServiceIdentity
from app.engine.messages import Reranked
from app.service import application
from app.service.api.openai.routes import RerankBody, _ranking, _text_ranks
from app.service.application import create_document
from app.service.http.routing import Route
from app.settings.settings import Settings
from tests.app.engine.media.files import sound_file
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.running import RunningService
from tests.quantizer.gguf_files import N_EMBD, tiny_llama
from tests.quantizer.gguf_projectors import hearing_header
from tests.quantizer.gguf_speakers import tiny_speaker

TEMPLATE = (
    "{# <think></think> #}{% for message in messages %}{{ message.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
FIM_IDS = {"pre": 1, "suf": 2, "mid": 3}  # within the 256 bytes that the fake engine knows
SAYS = (
    '<say><think>Hm.</think>One moment.\n<tool_call>\n{"name": "look", "arguments": {"at": "Åre"}}\n</tool_call></say>'
)
ASKS: list[dict[str, Any]] = [{"role": "user", "content": SAYS}]
FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
RANKED = {"logprobs": True, "top_logprobs": 2}
GAP = {"input_prefix": "a<say>b\n</say>", "input_suffix": "c"}
JOB = {"kind": "tune", "arguments": {"model": "missing-has-this"}}  # it fails at once

Answered = Mapping[str, list[dict[str, Any]]]


def chats(**more: Any) -> list[dict[str, Any]]:
    """Return bodies of OpenAI's chat: with calls and probabilities, several, streamed."""
    asked = {"messages": ASKS, **more}
    usage = {"stream_options": {"include_usage": True}}
    return [
        asked | {"tools": TOOLS} | RANKED,
        asked | {"n": 2, "max_tokens": 2},
        *(
            asked | {"stream": True} | extra
            for extra in ({"tools": TOOLS} | usage, RANKED | {"timings_per_token": True})
        ),
    ]


TEXTS = [
    {"prompt": ["a", "b"], "max_tokens": 2, **extra}
    for extra in ({"logprobs": 2}, {"logprobs": 2, "stream": True}, {"echo": True, "logprobs": 1})
]
SPEECH: list[dict[str, Any]] = [
    {"input": "Hello there. How are you?", "model": "qwen3tts", **extra}
    for extra in ({}, {"response_format": "pcm", "voice": "alloy"}, {"stream_format": "sse", "seed": 1})
]
WRITTEN = [
    {"prompt": "a", "n_predict": 2, **extra}
    for extra in ({"n_probs": 2}, {"n": 2}, {"response_fields": ["content", "timings/prompt_n"]}, {"stream": True})
]
FILLED = [{"prompt": "a<say>b</say>", "suffix": "c", "max_tokens": 4}]
RESPONSES: list[dict[str, Any]] = [
    {"input": SAYS, "tools": [{"type": "function", **FUNCTION}]},
    {"input": SAYS, "max_output_tokens": 2},
    {"input": SAYS, "stream": True},
    {"input": SAYS, "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    {"input": SAYS, "top_logprobs": 2, "store": False},
    {"input": SAYS, "background": True},
    {"input": SAYS, "tools": [{"type": "custom", "name": "look"}]},
]
VECTORS = [{"input": ["a", "b"]}, {"input": [1, 2], "encoding_format": "base64"}]

# Bodies of what takes one; the others are asked as they are.
ANSWERED: Answered = {
    "POST /api/localllm/forget-prefixes": [{"prompt_cache_keys": ["a"]}],
    "POST /api/localllm/draft-texts": [{"draft_corpus": "a", "texts": ["b"], "prompt_cache_key": "c"}],
    "POST /v1/chat/completions": chats(),
    "POST /api/v0/chat/completions": chats(),
    "POST /chat/completions": chats(),
    "POST /api/v1/chat": [
        {"model": "coder", "input": "<say>a</say>", "max_output_tokens": 9},
        {"model": "coder", "input": [{"type": "text", "content": "<say>a</say>"}], "stream": True, "store": False},
    ],
    "POST /api/v1/models/load": [{"model": "coder", "echo_load_config": True, "flash_attention": True}],
    "POST /api/v1/models/unload": [{"instance_id": "coder"}],
    "POST /api/v1/models/download": [{"model": "coder"}, {"model": "org/tiny-GGUF"}],
    "POST /v1/chat/completions/input_tokens": [{"messages": ASKS}],
    "POST /v1/chat/completions/control": [{"id": "chatcmpl-0", "action": "reasoning_end"}],
    "POST /chat/completions/input_tokens": [{"messages": ASKS}],
    "POST /v1/completions": TEXTS,
    "POST /api/v0/completions": TEXTS,
    "POST /v1/fim/completions": FILLED,
    "POST /fim/completions": FILLED,
    "POST /v1/responses": RESPONSES,
    "POST /responses": RESPONSES,
    "POST /v1/responses/compact": [{"input": "a"}],
    "POST /responses/compact": [{"input": "a"}],
    "POST /v1/responses/input_tokens": [{"input": "a"}],
    "POST /responses/input_tokens": [{"input": "a"}],
    "POST /v1/conversations": [{}, {"items": [{"role": "user", "content": "a"}], "metadata": {"a": "b"}}],
    "POST /v1/conversations/{conversation_id}": [{"metadata": {"a": "b"}}],
    "POST /v1/conversations/{conversation_id}/items": [{"items": [{"role": "user", "content": "a"}]}],
    "POST /embedding": [{"content": "a"}, {"content": ["a", [98]], "embd_normalize": 0}],
    "POST /embeddings": [{"content": "a"}, *VECTORS],
    "POST /v1/embeddings": VECTORS,
    "POST /api/v0/embeddings": VECTORS,
    "POST /v1/messages": [
        {
            "messages": ASKS,
            "max_tokens": 200,
            "tools": [{"name": "look", "input_schema": {"type": "object", "properties": {"at": {}}}}],
        },
        {"messages": ASKS, "max_tokens": 2, "stop_sequences": ["x"]},
        {"messages": ASKS, "max_tokens": 2, "stream": True},
        {"messages": ASKS, "max_tokens": 2, "thread": {"type": "create"}},
        {"messages": ASKS, "max_tokens": 90, "compaction": {"type": "summarize"}},
    ],
    "POST /v1/messages/count_tokens": [{"messages": ASKS, "max_tokens": 1}],
    "POST /api/show": [{"model": "coder"}],
    "POST /api/chat": [
        {"messages": ASKS, "stream": False, "tools": TOOLS} | RANKED,
        {"messages": ASKS, "tools": TOOLS} | RANKED,
        {"messages": []},
    ],
    "POST /api/generate": [
        {"prompt": SAYS, "stream": False} | RANKED,
        {"prompt": SAYS} | RANKED,
        {"prompt": "a<say>b</say>", "suffix": "c", "stream": False},
        {"keep_alive": 0},
    ],
    "POST /api/embed": [{"input": ["a", "b"]}, {"input": []}],
    "POST /api/embeddings": [{"prompt": "a"}, {"prompt": ""}],
    "POST /api/pull": [{"model": "org/tiny-GGUF", "stream": False}, {"model": "coder"}],
    "POST /api/create": [{"model": "made", "from": "coder", "stream": False}],
    "POST /api/copy": [{"source": "coder", "destination": "copied"}],
    "DELETE /api/delete": [{"model": "gone"}],
    "POST /tokenize": [
        {"content": "aö"},
        {"content": "aö", "with_pieces": True},
        {"prompt": "aö", "return_token_strs": True},
        {"messages": ASKS},
    ],
    "POST /detokenize": [{"tokens": [97]}],
    **dict.fromkeys(("POST /v1/audio/speech", "POST /audio/speech"), SPEECH),
    "POST /completion": WRITTEN,
    "POST /completions": WRITTEN,
    "POST /infill": [GAP | {"n_predict": 4}, GAP | {"n_predict": 0, "response_fields": [""]}, GAP | {"stream": True}],
    "POST /apply-template": [{"messages": ASKS}],
    "POST /api/localllm/load": [{}],
    "POST /api/localllm/read-ahead": [{"messages": [{"role": "user", "content": "What"}]}],
    "POST /api/localllm/stay": [{"until": "jobs-end"}],
    "POST /api/localllm/import": [{"source": "", "name": "org/imported", "copy": True}],
    "POST /api/localllm/remove": [{"model": "gone", "dry_run": True}, {"model": "gone"}],
    "POST /api/localllm/unload": [{}, {"model": "guide"}],
    "POST /api/localllm/schema": [{"schema": {"type": "object"}}],
    "POST /api/localllm/keep-alive": [{"keep_alive": "10m"}, {"keep_alive": -1}],
    "POST /api/localllm/plan": [{}, {"is_full": True, "n_ctx": 512, "vram": ["RTX 3060=1GiB"], "ram": "8GiB@40GB/s"}],
    "POST /api/localllm/reload": [{"n_ctx": 4096}],
    "POST /api/localllm/context": [{"n_ctx": 512}],
    "POST /api/localllm/evictions": [{}, {"model": "guide", "n_ctx": 512}],
    "POST /api/localllm/jobs": [JOB],
}
UPLOAD: dict[str, Any] = {
    "data": {"purpose": "batch"},
    "files": {
        "file": (
            "in.jsonl",
            b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}',
        )
    },
}
SOUND: dict[str, Any] = {"files": {"file": ("a.wav", sound_file())}}
TRANSCRIPTS: list[dict[str, Any]] = [
    SOUND | {"data": {"model": "hearing", "prompt": "<say>a</say>", **fields}}
    for fields in (
        {},
        {"response_format": "verbose_json", "max_tokens": "1"},
        {"response_format": "srt"},
        {"response_format": "verbose_json", "stream": "true"},
    )
]
# Of what takes a form.
FORMS: Answered = {
    "POST /v1/files": [UPLOAD],
    "POST /files": [UPLOAD],
    "POST /v1/audio/transcriptions": TRANSCRIPTS,
    **dict.fromkeys(
        ("POST /audio/transcriptions", "POST /v1/audio/translations", "POST /audio/translations"), TRANSCRIPTS[:1]
    ),
}
ASKED = {
    "GET /api/localllm/search": "?words=tiny",
    "GET /api/localllm/library": "?external=1",
    "GET /api/localllm/identity": f"?challenge={'0' * 64}",
}
RANKS = {f"POST {path}" for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")}
REFUSED = {f"POST {path}" for path in ("/api/push", "/props", "/slots/{slot_id}", "/lora-adapters")}
OF_RUNNING = "POST /api/localllm/requests/{response_id}/end-thought"
STOP = "POST /api/localllm/stop"
OF_OPEN_KEY = "GET /api/localllm/metered-keys/{key_id}"
NO_ANSWER = {
    *REFUSED,
    *RANKS,
    OF_RUNNING,
    OF_OPEN_KEY,
    STOP,
}  # and what the fake engine cannot, or only while something runs
ENDLESS = {  # streams that only the client ends
    "GET /api/localllm/jobs/events",
    "GET /api/localllm/attend",
    "POST /api/localllm/metered-keys",
}
documented = cache(create_document)  # by who runs these tests: each worker collects them, for half a second
OPERATIONS = sorted(
    f"{method} {route.path.replace(':path}', '}')}"
    for module in application._ROUTE_MODULES
    for route in module.router.routes
    if isinstance(route, Route) and route.include_in_schema
    for method in (route.methods or set()) - {"HEAD"}
)


@pytest.mark.slow
def test_the_operations_tested_here_are_those_of_the_document() -> None:
    paths = documented()["paths"]
    assert sorted(f"{method.upper()} {path}" for path, methods in paths.items() for method in methods) == OPERATIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def coder(folder: Path) -> Path:
    """A model that thinks, calls tools and fills in the middle."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(TEMPLATE)
        for name, token in FIM_IDS.items():
            writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)

    return tiny_llama(folder / "coder.gguf", edit)


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService], folder: Path, coder: Path) -> Iterator[RunningService]:
    """A service that sees no folder of the user's and no other hub than ours."""
    hears = folder / "data" / "models" / "org" / "hearing"
    hears.mkdir(parents=True)
    tiny_speaker(folder / "data" / "models" / "org" / "talker", "qwen3tts")
    shutil.copy(coder, hears / "hearing.gguf")
    hearing_header(hears / "mmproj-hearing.gguf", n_embd=N_EMBD)
    with HubServer(HubRepo.of("org/tiny-GGUF", {"tiny-Q4_K_M.gguf": coder}, tags=["gguf"])) as hub:
        outside = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", "HF_HOME": str(folder), "OLLAMA_MODELS": str(folder / "no")}
        places = {"data_dir": str(folder / "data"), "cache_dir": str(folder / "cache")}
        yield start_service(outside, model=str(coder), **places)


@pytest.fixture(scope="module")
def failed_job_id(own: RunningService) -> str:
    """Return a job that has failed, for all that only read of it."""
    return fail_job(own)


def fail_job(own: RunningService) -> str:
    """Return a job that has just failed."""
    job = own.http.post("/api/localllm/jobs", json=JOB).json()
    while job["ended_s"] is None:
        time.sleep(0.01)
        job = own.http.get(f"/api/localllm/jobs/{job['id']}").json()
    return str(job["id"])


def stored_ids(own: RunningService, path: str) -> dict[str, str]:
    """Return the ids that `path` has: of a response in the background, and of a conversation with an item."""
    if "{response_id}" in path:
        made = own.http.post("/v1/responses", json={"input": "<say>a</say>", "background": True}).json()
        return {"{response_id}": made["id"]}
    if "{file_id}" in path:
        return {"{file_id}": uploaded(own)}
    if "{batch_id}" in path:
        return {"{batch_id}": own.http.post("/v1/batches", json=batch_of(own)).json()["id"]}
    if "{conversation_id}" not in path:
        return {}
    items = [{"id": "msg_1", "role": "user", "content": "a"}]
    made = own.http.post("/v1/conversations", json={"items": items}).json()
    return {"{conversation_id}": made["id"], "{item_id}": "msg_1"}


def uploaded(own: RunningService) -> str:
    return str(own.http.post("/v1/files", **UPLOAD).json()["id"])


def batch_of(own: RunningService) -> dict[str, Any]:
    return {"input_file_id": uploaded(own), "endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.fixture
def gone(folder: Path, coder: Path) -> Iterator[None]:
    """A model in the library that may be removed."""
    path = folder / "data" / "models" / "org" / "repo" / "gone.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(coder, path)
    yield
    path.unlink(missing_ok=True)


def holds(operation: str, response: httpx.Response) -> None:
    """Assert that `response` has a status, a type and fields that the document has for `operation`."""
    method, path = operation.split()
    described = documented()["paths"][path][method.lower()]["responses"]
    assert str(response.status_code) in described, response.text
    content = described[str(response.status_code)].get("content")
    if content is None:
        assert not response.content
        return
    media_type = response.headers["content-type"].partition(";")[0]
    assert media_type in content, response.text
    of_each = content[media_type].get("x-item-schema")
    for part in _parts(response.text, media_type):
        _check(part, of_each or content[media_type]["schema"])


def _parts(text: str, media_type: str) -> list[Any]:
    """Return the objects of a stream, but for the last word; the text itself where it is no JSON."""
    if media_type == "application/json":
        return [json.loads(text)]
    if media_type == "application/x-ndjson":
        return [json.loads(line) for line in text.splitlines()]
    if media_type == "text/event-stream":
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(item) for item in data if item != "[DONE]"]
    return [text]


def _check(value: object, schema: Mapping[str, Any]) -> None:
    Draft202012Validator({**schema, "components": documented()["components"]}).validate(value)


def test_the_service_serves_this_document(own: RunningService) -> None:
    assert own.http.get("/openapi.json").json() == documented()


@pytest.mark.slow
def test_every_schema_is_one() -> None:
    for schema in documented()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_no_answer_is_left_open() -> None:
    for operation in set(OPERATIONS) - REFUSED:
        method, path = operation.split()
        answers = documented()["paths"][path][method.lower()]["responses"]
        assert "default" not in answers
        assert {"200", "201"} & set(answers), operation
        for answer in answers.values():
            assert all(
                "schema" in content or "x-item-schema" in content for content in answer.get("content", {}).values()
            )


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - NO_ANSWER - ENDLESS))
@pytest.mark.usefixtures("gone")
def test_each_answer_matches_the_document(own: RunningService, operation: str, coder: Path, failed_job_id: str) -> None:
    method, path = operation.split()
    job_id = failed_job_id if operation.startswith("GET") or "{job_id}" not in path else fail_job(own)
    url = path.replace("{model_id}", "coder").replace("{job_id}", job_id) + ASKED.get(operation, "")
    for name, stored_id in stored_ids(own, path).items():
        url = url.replace(name, stored_id)
    own.wait_until(lambda model: model["state"] != "loading")  # a model that loads cannot be unloaded
    for form in FORMS.get(operation, ()):
        response = own.http.post(url, **form)
        assert response.is_success, response.text
        holds(operation, response)
    if operation in FORMS:
        return
    for body in [batch_of(own)] if path.endswith("/batches") and method == "POST" else ANSWERED.get(operation, [None]):
        asked = body | {"source": str(coder)} if operation == "POST /api/localllm/import" and body else body
        response = own.http.request(method, url, json=asked)
        assert response.is_success, response.text
        holds(operation, response)


@pytest.mark.parametrize("returns_documents", [False, True])
def test_ranks_match_the_document(returns_documents: bool) -> None:
    body = RerankBody(query="a", documents=["b", "c"], return_documents=returns_documents)
    described = documented()["paths"]["/v1/rerank"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    _check(_ranking(Reranked("call", (0.5, 1.5), 7), body, "coder"), described)


@pytest.mark.parametrize("returns_text", [False, True])
def test_ranks_of_texts_match_the_document(returns_text: bool) -> None:
    body = RerankBody(query="a", texts=["b", "c"], return_text=returns_text)
    described = documented()["paths"]["/rerank"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    ranks = _text_ranks(Reranked("call", (0.5, 1.5), 7), body)
    _check(ranks, described)
    assert [rank["index"] for rank in ranks] == [1, 0]
    assert [rank.get("text") for rank in ranks] == (["c", "b"] if returns_text else [None, None])


@pytest.mark.parametrize("operation", sorted(ENDLESS))
@pytest.mark.usefixtures("failed_job_id")
def test_the_first_event_of_an_endless_stream_matches_the_document(own: RunningService, operation: str) -> None:
    method, path = operation.split()
    described = documented()["paths"][path][method.lower()]["responses"]["200"]["content"]["text/event-stream"]
    with own.http.stream(method, path) as response:
        first = next(line for line in response.iter_lines() if line.startswith("data: "))
    _check(json.loads(first.removeprefix("data: ")), described["x-item-schema"])


def test_what_a_key_used_matches_the_document(own: RunningService) -> None:
    with own.http.stream("POST", "/api/localllm/metered-keys") as response:
        first = next(line for line in response.iter_lines() if line.startswith("data: "))
        key_id = json.loads(first.removeprefix("data: "))["id"]
        holds(OF_OPEN_KEY, own.http.get(f"/api/localllm/metered-keys/{key_id}"))


@pytest.mark.parametrize(
    ("operation", "asked", "status"),
    [
        *((operation, {"headers": {"origin": "https://example.org"}}, 403) for operation in OPERATIONS),
        *((operation, {"content": b"["}, 400) for operation in sorted(ANSWERED)),
    ],
)
def test_each_refusal_of_a_web_page_and_of_invalid_json_matches_the_document(
    own: RunningService, operation: str, asked: dict[str, Any], status: int
) -> None:
    method, path = operation.split()
    response = own.http.request(method, path, **asked)
    assert response.status_code == status
    holds(operation, response)


@pytest.mark.parametrize(
    ("operation", "asked", "status"),
    [
        ("POST /v1/chat/completions", {"messages": ASKS, "model": "missing"}, 404),
        ("POST /v1/completions", {"prompt": "a" * 5000}, 400),
        ("POST /v1/responses", {"input": "a", "previous_response_id": "resp_none"}, 400),
        ("POST /v1/responses", {"input": [{"id": "msg_none"}]}, 404),
        ("GET /v1/responses/{response_id}", {}, 404),
        ("POST /v1/responses/{response_id}/cancel", {}, 404),
        ("GET /v1/responses/{response_id}/input_items", {}, 404),
        ("DELETE /v1/conversations/{conversation_id}", {}, 404),
        ("POST /v1/messages", {"messages": ASKS, "max_tokens": 1, "model": "missing"}, 404),
        ("POST /api/chat", {"messages": ASKS, "model": "missing"}, 404),
        ("POST /completion", {"prompt": "a" * 5000}, 400),
        ("POST /infill", GAP | {"model": "guide:missing"}, 404),
        *((operation, {}, 501) for operation in sorted(REFUSED)),
        ("POST /api/copy", {"source": "coder", "destination": "gone"}, 200),
        ("POST /api/localllm/plan", {"kv_type": "q9"}, 400),
        ("POST /api/localllm/plan", {"model": "org/nothing-here"}, 404),
        ("POST /api/localllm/reload", {"ram": "8GiB@40GB/s"}, 400),
        ("POST /api/localllm/import", {"source": "/nothing/here.gguf"}, 404),
        ("POST /api/localllm/remove", {"model": "guide"}, 400),
        ("POST /api/localllm/jobs", {"kind": "dance"}, 400),
        ("GET /api/localllm/search", {}, 400),
        ("GET /api/localllm/identity", {}, 400),
        (STOP, {"challenge": "0" * 64, "proof": "0" * 64}, 403),
        (OF_OPEN_KEY, {}, 404),
    ],
)
def test_each_error_matches_the_document(
    own: RunningService, operation: str, asked: dict[str, Any], status: int
) -> None:
    method, path = operation.split()
    response = own.http.request(method, path, json=asked)
    assert response.status_code == status, response.text
    holds(operation, response)


def test_health_while_loading_matches_the_document(own: RunningService) -> None:
    own.http.post("/api/localllm/reload", json={})
    for path in ("/health", "/v1/health"):
        response = own.http.get(path)
        assert response.status_code in (200, 503)
        holds(f"GET {path}", response)
    own.wait_until(lambda model: model["state"] == "ready")


@pytest.mark.slow
def test_the_end_of_a_service_in_use_matches_the_document(own: RunningService, folder: Path) -> None:
    identity = ServiceIdentity(Settings(data_dir=folder / "data", cache_dir=folder / "cache"))
    challenge = "1" * 64
    body = {"challenge": challenge, "proof": identity.proof("end the service", challenge), "if_unused": True}
    response = own.http.post("/api/localllm/stop", json=body)
    assert response.json()["is_stopping"] is False  # it was started to serve
    holds(STOP, response)
