"""OpenAI's Python SDK: chat, stream, cancel, tools, embeddings, responses."""

from __future__ import annotations

import json

import openai
from asking import ANSWER, CALL, CITY, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SAID, SCHEMA, assert_idle, say

guide = openai.OpenAI(base_url=f"{GUIDE}/v1", api_key="none", max_retries=0)
fake = openai.OpenAI(base_url=f"{FAKE}/v1", api_key="none", max_retries=0)
messages = [{"role": "user", "content": QUESTION}]
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]

whole = guide.chat.completions.create(model=MODEL, messages=messages, temperature=0)
assert ANSWER in whole.choices[0].message.content
chunks = list(guide.chat.completions.create(model=MODEL, messages=messages, temperature=0, stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
assert ANSWER in guide.responses.create(model=MODEL, input=QUESTION, temperature=0).output_text
with guide.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
    assert ANSWER in stream.get_final_response().output_text
assert len(guide.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
assert guide.completions.create(model=MODEL, prompt="def f(a):\n", suffix="\n", max_tokens=8).choices[0].text

first = fake.responses.create(model=MODEL, input=say("one"))
second = fake.responses.create(model=MODEL, input=say("two"), previous_response_id=first.id)
assert second.output_text == "two"
assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
assert fake.responses.retrieve(second.id).output_text == "two"
conversation = fake.conversations.create(items=[{"role": "user", "content": say("three")}])
assert fake.responses.create(model=MODEL, input=say("four"), conversation=conversation.id).output_text == "four"
assert len(list(fake.conversations.items.list(conversation.id))) == 3
later = fake.responses.create(model=MODEL, input=ENDLESS, background=True)
assert fake.responses.cancel(later.id).status == "cancelled"
fake.responses.delete(second.id)

asked = [{"role": "user", "content": CALL}]
(call,) = fake.chat.completions.create(model=MODEL, messages=asked, tools=tools).choices[0].message.tool_calls
assert json.loads(call.function.arguments) == {"city": CITY}
result = {"role": "tool", "tool_call_id": call.id, "content": say(SAID)}
asked += [{"role": "assistant", "tool_calls": [call.model_dump()]}, result]
assert fake.chat.completions.create(model=MODEL, messages=asked, tools=tools).choices[0].message.content == SAID

endless = fake.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": ENDLESS}], stream=True)
next(iter(endless))
endless.close()
assert_idle(FAKE)
