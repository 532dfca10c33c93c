"""Ollama's Python SDK: chat, stream, cancel, tools, form, embeddings, fill in the middle, models."""

from __future__ import annotations

import json

import ollama
from asking import ANSWER, CALL, CITY, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SAID, SCHEMA, assert_idle, say

guide, fake = ollama.Client(host=GUIDE), ollama.Client(host=FAKE)
messages = [{"role": "user", "content": QUESTION}]
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
greedy = {"temperature": 0}

assert MODEL in {model.model for model in guide.list().models}
assert {"completion", "tools", "insert"} <= set(guide.show(MODEL).capabilities)
whole = guide.chat(MODEL, messages, options=greedy)
assert ANSWER in whole.message.content
parts = list(guide.chat(f"{MODEL}:latest", messages, options=greedy, stream=True))
assert "".join(part.message.content for part in parts) == whole.message.content
form = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}
assert json.loads(guide.chat(MODEL, messages, format=form).message.content)["a"] in "bc"
assert guide.generate(MODEL, "def f(a):\n", suffix="\n", options={"num_predict": 8}).response
assert len(guide.embed(MODEL, ["a", "b"]).embeddings) == 2

asked = [{"role": "user", "content": CALL}]
first = fake.chat(MODEL, asked, tools=tools).message
assert first.tool_calls[0].function.arguments == {"city": CITY}
asked += [first, {"role": "tool", "tool_name": "get_weather", "content": say(SAID)}]
assert fake.chat(MODEL, asked, tools=tools).message.content == SAID

endless = fake.chat(MODEL, [{"role": "user", "content": ENDLESS}], stream=True)
next(endless)
endless.close()
assert_idle(FAKE)
