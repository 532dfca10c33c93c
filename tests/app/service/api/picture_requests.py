"""The requests by which clients send a picture: path, body, and the text of the last message around it.

The shapes are those of the named clients (source: their public code and documentation, read in 2026), written anew.
In the expected text `{}` is the picture.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from tests.app.engine.media.files import picture_file, sound_file

__all__ = ["FILE", "REQUESTS", "SOUND", "URL", "PictureRequest"]

FILE = b64encode(picture_file()).decode()
SOUND = b64encode(sound_file(0.1)).decode()
URL = f"data:image/png;base64,{FILE}"
_BLOCK: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}}
_PART: dict[str, Any] = {"type": "image_url", "image_url": {"url": URL}}


@dataclass(frozen=True)
class PictureRequest:
    """A request of a client with one picture or sound, which stands in the prompt where `text` has `{}`."""

    path: str
    body: dict[str, Any]
    text: str


def _called(name: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


REQUESTS: dict[str, PictureRequest] = {
    "OpenAI's Python client": PictureRequest(
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is in this image?"},
                        {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
                    ],
                }
            ]
        },
        "What is in this image?{}",
    ),
    "OpenAI's Python client with a sound": PictureRequest(
        "/v1/chat/completions",
        {
            "modalities": ["text"],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
                        {"type": "text", "text": "What is said?"},
                    ],
                }
            ],
        },
        "{}What is said?",
    ),
    "OpenAI's Python client, responses": PictureRequest(
        "/v1/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is in this image?"},
                        {"type": "input_image", "image_url": URL, "detail": "auto"},
                    ],
                }
            ]
        },
        "What is in this image?{}",
    ),
    "Codex, a picture of a tool": PictureRequest(
        "/v1/responses",
        {
            "store": False,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look at a.png"}]},
                {"type": "function_call", "name": "view_image", "arguments": "{}", "call_id": "c1"},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_image", "image_url": URL, "detail": "high"}],
                },
            ],
        },
        "<tool_response>\n{}\n</tool_response>",
    ),
    "Anthropic's Python client": PictureRequest(
        "/v1/messages",
        {
            "max_tokens": 16,
            "messages": [{"role": "user", "content": [_BLOCK, {"type": "text", "text": "What is it?"}]}],
        },
        "{}What is it?",
    ),
    "Claude Code, a picture of a tool": PictureRequest(
        "/v1/messages",
        {
            "max_tokens": 16,
            "messages": [
                {"role": "user", "content": "Look at a.png"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [_BLOCK]}]},
            ],
        },
        "<tool_response>\n{}\n</tool_response>",
    ),
    "Ollama's Python client": PictureRequest(
        "/api/chat", {"messages": [{"role": "user", "content": "What is it?", "images": [FILE]}]}, "{}What is it?"
    ),
    "Ollama's Python client, generate": PictureRequest(
        "/api/generate", {"prompt": "What is it?", "images": [FILE]}, "{}What is it?"
    ),
    "Open WebUI with OpenAI's API": PictureRequest(
        "/v1/chat/completions",
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "What is this?"}, _PART]},
            ],
        },
        "What is this?{}",
    ),
    "Open WebUI with Ollama's API": PictureRequest(
        "/api/chat",
        {
            "stream": True,
            "options": {"temperature": 0.8},
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What is this?", "images": [FILE]},
            ],
        },
        "{}What is this?",
    ),
    "Continue with Ollama's API": PictureRequest(
        "/api/chat",
        {
            "stream": True,
            "keep_alive": 1800,
            "options": {"num_predict": 2048, "num_ctx": 8192, "stop": ["<stop>"]},
            "messages": [{"role": "user", "content": "What is this?", "images": [FILE]}],
        },
        "{}What is this?",
    ),
    "Continue with OpenAI's API": PictureRequest(
        "/v1/chat/completions",
        {
            "stream": True,
            "max_tokens": 64,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, _PART]}],
        },
        "What is this?{}",
    ),
    "Cline with LM Studio's API": PictureRequest(
        "/v1/chat/completions",
        {
            "stream": True,
            "temperature": 0,
            "messages": [
                {"role": "system", "content": "You are Cline."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "<task>\nDescribe it.\n</task>"},
                        {"type": "image_url", "image_url": {"url": URL}},
                        {"type": "text", "text": "<environment_details>\n</environment_details>"},
                    ],
                },
            ],
        },
        "<task>\nDescribe it.\n</task>{}<environment_details>\n</environment_details>",
    ),
    "Cline with Ollama's API, a picture of a tool": PictureRequest(
        "/api/chat",
        {
            "stream": True,
            "options": {"num_ctx": 32768},
            "messages": [
                {"role": "system", "content": "You are Cline."},
                {"role": "user", "content": "Look at the page."},
                {"role": "assistant", "content": "<browser_action></browser_action>"},
                {"role": "user", "content": "(see following user message for image)", "images": [URL]},
            ],
        },
        "{}(see following user message for image)",
    ),
    "Cline with Ollama's API": PictureRequest(
        "/api/chat",
        {
            "stream": True,
            "options": {"num_ctx": 32768},
            "messages": [
                {"role": "system", "content": "You are Cline."},
                {"role": "user", "content": f"<task>\nDescribe it.\n</task>\n{URL}\n<environment_details>"},
            ],
        },
        "<task>\nDescribe it.\n</task>\n{}\n<environment_details>",
    ),
    "LM Studio's REST API": PictureRequest(
        "/api/v1/chat",
        {"input": [{"type": "message", "content": "What is it?"}, {"type": "image", "data_url": URL}]},
        "What is it?{}",
    ),
    "qwen-code, a picture of a tool": PictureRequest(
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Look at a.png"},
                _called("read_file"),
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a.png"}, _PART]},
            ]
        },
        "<tool_response>\na.png{}\n</tool_response>",
    ),
}
