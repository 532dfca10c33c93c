"""Anthropic's Python SDK: messages, stream, cancel, tools, counting."""

from __future__ import annotations

import anthropic
from asking import ANSWER, CALL, CITY, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SAID, SCHEMA, assert_idle, say

guide = anthropic.Anthropic(base_url=GUIDE, api_key="none", max_retries=0)
fake = anthropic.Anthropic(base_url=FAKE, auth_token="none", max_retries=0)
messages = [{"role": "user", "content": QUESTION}]
tools = [{"name": "get_weather", "input_schema": SCHEMA}]

asked = {"model": MODEL, "max_tokens": 300, "extra_body": {"temperature": 0}}
whole = guide.messages.create(messages=messages, **asked)
assert ANSWER in whole.content[0].text
with guide.messages.stream(messages=messages, **asked) as stream:
    assert "".join(stream.text_stream) == whole.content[0].text
assert guide.messages.count_tokens(model=MODEL, messages=messages).input_tokens > 10
assert [model.id for model in guide.models.list(limit=1)] == [MODEL]
assert guide.models.retrieve(MODEL).max_input_tokens > 0

said = [{"role": "user", "content": CALL}]
with fake.messages.stream(messages=said, tools=tools, **asked) as stream:
    first = stream.get_final_message()
(call,) = first.content
assert (call.name, call.input, first.stop_reason) == ("get_weather", {"city": CITY}, "tool_use")
result = {"type": "tool_result", "tool_use_id": call.id, "content": say(SAID)}
said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
assert fake.messages.create(messages=said, tools=tools, **asked).content[0].text == SAID

endless = [{"role": "user", "content": ENDLESS}]
with fake.messages.stream(messages=endless, model=MODEL, max_tokens=9000) as stream:
    next(iter(stream))
assert_idle(FAKE)
