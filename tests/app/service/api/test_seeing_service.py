"""A model that sees and hears, over HTTP in every dialect and by the official clients, with the fake engine.

Its encoder turns a picture into a mark, four embeddings and a mark: six tokens of the prompt.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ollama
import pytest

from app.client.connection import chat_body
from app.protocol.chat import GenerationOptions, MediaPart, Message, Tool, ToolCall
from tests.app.chat.attachments.files import pdf_of
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.app.service.api.lmstudio.sdk_client import connected, history, predict, stack
from tests.app.service.api.picture_requests import FILE, REQUESTS, SOUND, URL
from tests.quantizer.gguf_projectors import tiny_projector

N_PICTURE = 6  # tokens
LIMITS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"max_output_tokens": 4},
    "/api/chat": {"options": {"num_predict": 4}},
    "/api/generate": {"options": {"num_predict": 4}},
    "/api/v1/chat": {"model": "tiny", "max_output_tokens": 4},
}
PART = {"type": "image_url", "image_url": {"url": URL}}
BLOCK: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}}


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a projector beside it."""
    folder = tmp_path_factory.mktemp("seeing")
    tiny_projector(folder / "mmproj-tiny.gguf")
    return Path(shutil.copy(tiny_model, folder / "tiny.gguf"))


@pytest.fixture(scope="module")
def seeing(model: Path, start_service: Callable[..., RunningService]) -> RunningService:
    return start_service(model=str(model))


@pytest.fixture(scope="module")
def openai_client(seeing: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _asking(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 4, "temperature": 0, **more}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _chat(service: RunningService, *parts: dict[str, Any]) -> dict[str, Any]:
    response = service.http.post("/v1/chat/completions", json=_asking(*parts))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", REQUESTS)
def test_a_picture_of_each_client_is_answered(seeing: RunningService, client: str, stream: bool) -> None:
    sent = REQUESTS[client]
    body = sent.body | LIMITS.get(sent.path, {"max_tokens": 4}) | {"stream": stream}
    response = seeing.http.post(sent.path, json=body)
    assert response.status_code == 200, response.text
    assert "x-localllm-warning" not in response.headers
    assert '"error":{' not in response.text


def test_the_prompt_counts_the_tokens_of_its_pictures(seeing: RunningService) -> None:
    n_text = _chat(seeing, _text("What is it?"))["usage"]["prompt_tokens"]
    assert _chat(seeing, _text("What is it?"), PART)["usage"]["prompt_tokens"] == n_text + N_PICTURE
    two = _chat(seeing, PART, _text("What is it?"), PART)["usage"]
    assert two["prompt_tokens"] == n_text + 2 * N_PICTURE
    body = _asking(_text("What is it?"), PART)
    counted = seeing.http.post("/v1/chat/completions/input_tokens", json=body).json()
    assert counted["input_tokens"] == n_text + N_PICTURE
    body = {"messages": [{"role": "user", "content": [BLOCK, _text("What is it?")]}]}
    assert seeing.http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] == n_text + N_PICTURE


def test_the_answer_depends_on_the_picture_and_a_second_one_finds_it_cached(seeing: RunningService) -> None:
    other = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(b'another').decode()}"}}
    question = _text("What is on this picture, which nobody has asked about before?")
    first, changed, again = (_chat(seeing, picture, question) for picture in (PART, other, PART))
    assert first["choices"] == again["choices"]
    assert first["choices"][0]["message"] != changed["choices"][0]["message"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= again["usage"]["prompt_tokens"] - 1


def test_a_chat_s_result_of_a_tool_has_its_picture_for_the_model(seeing: RunningService) -> None:
    def counted(*media: MediaPart) -> int:
        called = Message("assistant", calls=(ToolCall("c1", "look", "{}"),))
        result = Message("tool", "[picture 1]", media, call_id="c1", name="look")
        options = GenerationOptions(max_tokens=4, tools=(Tool("look"),))
        body = {**chat_body([Message("user", "Look."), called, result], "tiny", options), "stream": False}
        response = seeing.http.post("/v1/chat/completions", json={**body, "stream_options": None})
        assert response.status_code == 200, response.text
        return int(response.json()["usage"]["prompt_tokens"])

    assert counted(MediaPart("image/png", FILE)) == counted() + N_PICTURE


def test_a_conversation_goes_on_from_its_pictures(seeing: RunningService) -> None:
    messages = [{"role": "user", "content": [PART, _text("A story about this picture, in one sentence, please.")]}]
    first = seeing.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 8}).json()
    messages += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}]
    messages += [{"role": "user", "content": [_text("And of this one?"), PART]}]
    usage = seeing.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 8}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_a_stored_response_keeps_its_picture(seeing: RunningService) -> None:
    part = {"type": "input_image", "image_url": URL}
    content = [{"type": "input_text", "text": "Keep this picture."}, part]
    first = seeing.http.post(
        "/v1/responses", json={"input": [{"role": "user", "content": content}], "max_output_tokens": 4}
    ).json()
    body = {"input": "And now?", "previous_response_id": first["id"], "max_output_tokens": 4}
    usage = seeing.http.post("/v1/responses", json=body).json()["usage"]
    n_text = len("<user>Keep this picture.\n<assistant>\n<user>And now?\n<assistant>")
    assert usage["input_tokens"] >= n_text + N_PICTURE
    assert usage["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"]
    items = seeing.http.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert items[0]["content"][1]["image_url"] == URL


@pytest.mark.slow
def test_openais_client_sends_pictures_and_sounds(openai_client: sdk.openai.OpenAI) -> None:
    content: Any = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
    ]
    messages: Any = [{"role": "user", "content": content}]
    answer = openai_client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("<user>What is it?\n<assistant>") + 2 * N_PICTURE
    items: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": URL, "detail": "auto"}]}]
    assert openai_client.responses.create(model="tiny", input=items, max_output_tokens=4).output_text


def test_openais_client_knows_a_damaged_picture_as_a_bad_request(openai_client: sdk.openai.OpenAI) -> None:
    damaged = b64encode(b"damaged").decode()
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}
    messages: Any = [{"role": "user", "content": [part]}]
    with pytest.raises(sdk.openai.BadRequestError, match="not valid Base64"):
        openai_client.chat.completions.create(model="tiny", messages=messages)
    part["image_url"]["url"] = f"data:image/png;base64,{damaged}"
    with pytest.raises(sdk.openai.BadRequestError, match="damaged"):
        openai_client.chat.completions.create(model="tiny", messages=messages)


@pytest.mark.slow
def test_anthropics_client_sends_a_picture_and_gets_one_from_a_tool(seeing: RunningService) -> None:
    with sdk.anthropic.Anthropic(base_url=seeing.url, api_key="none", max_retries=0) as client:
        asked: list[Any] = [{"role": "user", "content": [BLOCK, {"type": "text", "text": "What is it?"}]}]
        answer = client.messages.create(model="tiny", max_tokens=4, messages=asked)
        assert answer.content[0].type == "text"
        with client.messages.stream(model="tiny", max_tokens=4, messages=asked) as stream:
            usage = stream.get_final_message().usage
        counted = client.messages.count_tokens(model="tiny", messages=asked).input_tokens
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
        called: list[Any] = [
            {"role": "user", "content": "Look at a.png"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [BLOCK]}]},
        ]
        tool: Any = {"name": "look", "input_schema": {"type": "object"}}
        assert client.messages.create(model="tiny", max_tokens=4, messages=called, tools=[tool]).content
        (listed,) = [entry for entry in client.models.list() if entry.id == "tiny"]
        assert listed.capabilities is not None
        assert listed.capabilities.image_input.supported
        assert not listed.capabilities.pdf_input.supported


def test_ollamas_client_sends_a_picture(seeing: RunningService, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"a picture")
    message = {"role": "user", "content": "What is it?", "images": [str(tmp_path / "a.png")]}
    with closing(ollama.Client(seeing.url, trust_env=False)) as client:
        answer = client.chat(model="tiny", messages=[message], options={"num_predict": 4})
        assert answer.message.content
        assert answer.prompt_eval_count == len("<user>What is it?\n<assistant>") + N_PICTURE
        made = client.generate(model="tiny", prompt="What is it?", images=[b"a picture"], options={"num_predict": 4})
        assert made.prompt_eval_count == answer.prompt_eval_count
        raw = client.generate(model="tiny", prompt="It is", images=[b"raw"], raw=True, options={"num_predict": 4})
        assert raw.prompt_eval_count == len("It is") + N_PICTURE
        assert "vision" in (client.show("tiny").capabilities or ())


def test_llama_servers_prompts_have_pictures_where_their_marker_is(seeing: RunningService) -> None:
    props = seeing.http.get("/props").json()
    assert props["modalities"] == {"vision": True, "video": False, "audio": True}
    marker = props["media_marker"]
    prompt = {"prompt_string": f"First {marker} then {marker}", "multimodal_data": [FILE, SOUND]}
    answer = seeing.http.post("/completion", json={"prompt": prompt, "n_predict": 4}).json()
    assert answer["tokens_evaluated"] == len("First  then ") + 2 * N_PICTURE
    assert answer["prompt"] == prompt["prompt_string"], "as the client wrote it"
    text = seeing.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4}).json()
    assert text["usage"]["prompt_tokens"] == answer["tokens_evaluated"]
    shown = seeing.http.post("/apply-template", json=_asking(_text("a"), PART)).json()["prompt"]
    assert shown == f"<user>a{marker}\n<assistant>"
    for more in ({"echo": True}, {"suffix": "x"}):
        refused = seeing.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, **more})
        assert refused.status_code == 400


def test_a_public_marker_in_a_message_is_a_text(seeing: RunningService) -> None:
    marker = seeing.http.get("/props").json()["media_marker"]
    n_text = _chat(seeing, _text(marker))["usage"]["prompt_tokens"]
    assert n_text == len(f"<user>{marker}\n<assistant>")
    assert _chat(seeing, _text(marker), PART)["usage"]["prompt_tokens"] == n_text + N_PICTURE


def test_every_list_of_models_says_that_it_sees_and_hears(seeing: RunningService) -> None:
    def entry(path: str, field: str) -> dict[str, Any]:
        entries: list[dict[str, Any]] = seeing.http.get(path).json()[field]
        return next(item for item in entries if "tiny" in (item.get("id"), item.get("name"), item.get("key")))

    assert entry("/v1/models", "data")["architecture"]["input_modalities"] == ["text", "image", "audio"]
    assert {"vision", "audio"} <= set(entry("/api/tags", "models")["capabilities"])
    assert entry("/api/v0/models", "data")["type"] == "vlm"
    assert entry("/api/v1/models", "models")["capabilities"]["vision"] is True
    guide = next(item for item in seeing.http.get("/v1/models").json()["data"] if item["id"] != "tiny")
    assert guide["architecture"]["input_modalities"] == ["text"]


def test_a_model_without_eyes_names_one_that_sees(seeing: RunningService) -> None:
    guide = next(item["id"] for item in seeing.http.get("/v1/models").json()["data"] if item["id"] != "tiny")
    refused = seeing.http.post("/v1/chat/completions", json=_asking(PART, model=guide))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "The question has a picture, but this model reads only text. Ask tiny, which sees pictures."
    )


@pytest.mark.slow
def test_sixty_five_pictures_and_a_hundred_megabytes_are_refused(seeing: RunningService) -> None:
    urls = [f"data:image/png;base64,{b64encode(b'%d' % number).decode()}" for number in range(65)]
    many = seeing.http.post(
        "/v1/chat/completions", json=_asking(*({"type": "image_url", "image_url": {"url": url}} for url in urls))
    )
    assert many.status_code == 400
    assert "65 pictures and sounds" in many.text
    head = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    large = seeing.http.post("/v1/chat/completions", content=head + b"A" * (100 << 20) + b'"}}]}]}')
    assert large.status_code == 413
    assert json.loads(large.text)["error"]["code"] == "body_too_large"
    assert _chat(seeing, PART)["choices"]


@pytest.mark.parametrize("path", ["/v1/messages", "/api/chat", "/v1/responses", "/api/v1/chat"])
def test_a_damaged_picture_is_an_error_in_the_form_of_each_dialect(seeing: RunningService, path: str) -> None:
    data = b64encode(b"damaged").decode()
    url = f"data:image/png;base64,{data}"
    bodies: dict[str, dict[str, Any]] = {
        "/v1/messages": {
            "max_tokens": 4,
            "messages": [{"role": "user", "content": [{**BLOCK, "source": {**BLOCK["source"], "data": data}}]}],
        },
        "/api/chat": {"stream": False, "messages": [{"role": "user", "content": "x", "images": [data]}]},
        "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        "/api/v1/chat": {"model": "tiny", "input": [{"type": "image", "data_url": url}]},
    }
    response = seeing.http.post(path, json=bodies[path])
    assert response.status_code == 400
    error = response.json()["error"]
    assert "damaged" in (error if path == "/api/chat" else error["message"])


def test_addresses_of_this_machine_are_refused_also_where_the_web_is_allowed(
    model: Path, start_service: Callable[..., RunningService]
) -> None:
    service = start_service(model=str(model), fetch_media_urls="true")
    for address in (f"{service.url}/health", "http://localhost/a.png", "http://[::1]:1/a.png", "http://0.0.0.0/"):
        part = {"type": "image_url", "image_url": {"url": address}}
        refused = service.http.post("/v1/chat/completions", json=_asking(part))
        assert refused.status_code == 400, address
        assert "not on the internet" in refused.text


def test_a_picture_of_lm_studios_sdk_is_uploaded_and_named(seeing: RunningService) -> None:
    with connected(seeing.url, "files") as files:
        held = files.result("uploadFileBase64", {"name": "cat.png", "contentBase64": FILE})
    picture = {"type": "file", "name": "cat.png", **held}
    text = {"type": "text", "text": "What is it?"}
    with connected(seeing.url, "llm") as client:
        config = {**predict(""), "history": history(("user", [text, picture]))}
        *_, success = client.packets("predict", config)
        assert success["stats"]["promptTokensCount"] == len("<user>What is it?\n<assistant>") + N_PICTURE
        unknown = {**predict(""), "history": history(("user", [{**picture, "identifier": "unknown"}]))}
        assert "no content" in client.error("predict", unknown)["title"]
        template = {"type": "manual", "manualPromptTemplate": {}}
        own = {**config, "predictionConfigStack": stack(llm__prediction__promptTemplate=template)}
        assert "template of the model" in client.error("predict", own)["title"]


def test_a_picture_that_the_engine_cannot_read_is_refused_once_for_claude_code(seeing: RunningService) -> None:
    damaged = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "ZGFtYWdlZCE="}}

    def status(*more: dict[str, Any], stream: bool = False) -> int:
        body = {"messages": [{"role": "user", "content": [damaged, *more]}], "max_tokens": 2, "stream": stream}
        return seeing.http.post("/v1/messages", json=body).status_code

    assert status(_text("What is it?"), stream=True) == 400
    assert status(_text("What is it?"), _text("Then without it.")) == 200


PDF = b64encode(pdf_of(["<say>It is about whales.</say>"])).decode()
DOCUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Anthropic's client": (
        "/v1/messages",
        {
            "max_tokens": 64,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                        },
                        {"type": "text", "text": "What is it about?"},
                    ],
                }
            ],
        },
    ),
    "Claude Code reads a PDF": (
        "/v1/messages",
        {
            "max_tokens": 64,
            "messages": [
                {"role": "user", "content": "Look at a.pdf"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"tool_use_id": "toolu_1", "type": "tool_result", "content": "PDF file read: /a.pdf"},
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                        },
                    ],
                },
            ],
        },
    ),
    "OpenAI's client": (
        "/v1/chat/completions",
        {
            "max_tokens": 64,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "file",
                            "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
                        },
                        {"type": "text", "text": "What is it about?"},
                    ],
                }
            ],
        },
    ),
    "OpenAI's client, responses": (
        "/v1/responses",
        {
            "max_output_tokens": 64,
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is it about?"},
                        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
                    ],
                }
            ],
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("client", DOCUMENTS)
def test_a_document_is_read_as_its_text(seeing: RunningService, client: str) -> None:
    path, body = DOCUMENTS[client]
    response = seeing.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "It is about whales." in response.text
    assert "x-localllm-warning" not in response.headers
    damaged = seeing.http.post(path, json=json.loads(json.dumps(body).replace(PDF, b64encode(b"%PDF-1.7").decode())))
    assert damaged.status_code == (200 if "Read" in json.dumps(body) else 400), "what a tool returns is a note"
