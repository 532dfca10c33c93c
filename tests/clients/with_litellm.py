"""litellm, in the three dialects that it can speak to one server: chat, stream, tools."""

from __future__ import annotations

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices

import litellm
from asking import ANSWER, CALL, CITY, FAKE, GUIDE, MODEL, QUESTION, SCHEMA

litellm.telemetry = False
dialects = {f"openai/{MODEL}": "/v1", f"ollama_chat/{MODEL}": "", f"anthropic/{MODEL}": ""}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]

for model, path in dialects.items():
    asked = {"model": model, "api_key": "none", "max_tokens": 300, "temperature": 0}
    question = [{"role": "user", "content": QUESTION}]
    whole = litellm.completion(api_base=f"{GUIDE}{path}", messages=question, **asked)
    assert ANSWER in whole.choices[0].message.content, model
    chunks = litellm.completion(api_base=f"{GUIDE}{path}", messages=question, stream=True, **asked)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content, model
    call = [{"role": "user", "content": CALL}]
    message = litellm.completion(api_base=f"{FAKE}{path}", messages=call, tools=tools, **asked).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": CITY}, model
