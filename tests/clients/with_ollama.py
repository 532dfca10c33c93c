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
long = guide.embed(MODEL, "a b c " * 20_000)  # truncated to the context
assert long.prompt_eval_count
assert long.total_duration
assert guide.ps().models[0].size > 0
guide.generate(MODEL, keep_alive=0)  # what `ollama stop` does
assert guide.chat(MODEL, messages, options=greedy).load_duration
assert guide.chat(MODEL, messages, options=greedy).load_duration < 10**9, "it stays loaded"
assert guide.chat("gpt-4o", messages, options=greedy).model == MODEL

asked = [{"role": "user", "content": CALL}]
first = fake.chat(MODEL, asked, tools=tools).message
assert first.tool_calls[0].function.arguments == {"city": CITY}
asked += [first, {"role": "tool", "tool_name": "get_weather", "content": say(SAID)}]
assert fake.chat(MODEL, asked, tools=tools).message.content == SAID

endless = fake.chat(MODEL, [{"role": "user", "content": ENDLESS}], stream=True)
next(endless)
endless.close()
assert_idle(FAKE)
