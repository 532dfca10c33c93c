"""langchain-ollama: chat, stream, tools, embeddings."""

from __future__ import annotations

from asking import ANSWER, CALL, CITY, FAKE, GUIDE, MODEL, QUESTION, SCHEMA
from langchain_ollama import ChatOllama, OllamaEmbeddings

guide = ChatOllama(base_url=GUIDE, model=MODEL, temperature=0)
fake = ChatOllama(base_url=FAKE, model=MODEL)

whole = guide.invoke(QUESTION).content
assert ANSWER in whole
assert "".join(chunk.content for chunk in guide.stream(QUESTION)) == whole
tool = {"type": "function", "function": {"name": "get_weather", "description": "weather", "parameters": SCHEMA}}
(call,) = fake.bind_tools([tool]).invoke(CALL).tool_calls
assert (call["name"], call["args"]) == ("get_weather", {"city": CITY})
assert len(OllamaEmbeddings(base_url=GUIDE, model=MODEL).embed_documents(["a", "b"])) == 2
