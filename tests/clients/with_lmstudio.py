"""LM Studio's Python SDK: lists, respond, stream, complete, schema, act, cancel, embed, tokenize, load, unload."""

from __future__ import annotations

import lmstudio
from asking import ANSWER, CALL, CITY, FAKE, GUIDE, MODEL, QUESTION, SAID, SCHEMA, assert_idle, say

guide, fake = (lmstudio.Client(url.removeprefix("http://")) for url in (GUIDE, FAKE))
assert MODEL in [model.model_key for model in guide.list_downloaded_models()]

model = guide.llm.model(MODEL)
whole = model.respond(QUESTION, config={"temperature": 0})
assert ANSWER in whole.content
assert whole.stats.stop_reason == "eosFound"
assert "".join(part.content for part in model.respond_stream(QUESTION, config={"temperature": 0})) == whole.content
assert model.complete("def f(a):\n", config={"maxTokens": 8}).content
city = model.respond("Name a city.", response_format=SCHEMA, config={"temperature": 0, "maxTokens": 200})
assert set(city.parsed) == {"city"}
assert model.count_tokens("hello") == len(model.tokenize("hello"))
assert model.apply_prompt_template({"messages": [{"role": "user", "content": "hi"}]})
assert len(guide.embedding.model(MODEL).embed(["a", "b"])) == 2
assert [loaded.identifier for loaded in guide.llm.list_loaded()] == [MODEL]


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == CITY
    return say(SAID)


said: list[str] = []
acted = fake.llm.model(MODEL).act(CALL, [get_weather], on_message=lambda message: said.append(str(message)))
assert acted.rounds == 2
assert SAID in said[-1]

stream = fake.llm.model(MODEL).respond_stream(say("word " * 300))
for _ in stream:
    stream.cancel()
assert stream.result().stats.stop_reason == "userStopped"
assert_idle(FAKE)

own = fake.llm.load_new_instance(MODEL, "mine", config={"contextLength": 1024})
assert own.get_context_length() == 1024
own.unload()
assert fake.llm.list_loaded() == []
try:
    fake.llm.unload("no such model")
except lmstudio.LMStudioModelNotFoundError:
    pass
else:
    raise AssertionError("a model that is not there was unloaded")
guide.close()
fake.close()
