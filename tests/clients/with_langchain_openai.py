"""langchain-openai: chat, stream, tools, embeddings."""

from __future__ import annotations

from asking import ANSWER, CALL, CITY, FAKE, GUIDE, MODEL, QUESTION, SCHEMA
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

guide = ChatOpenAI(base_url=f"{GUIDE}/v1", api_key="none", model=MODEL, temperature=0, max_retries=0)
fake = ChatOpenAI(base_url=f"{FAKE}/v1", api_key="none", model=MODEL, max_retries=0)

whole = guide.invoke(QUESTION).content
assert ANSWER in whole
assert "".join(chunk.content for chunk in guide.stream(QUESTION)) == whole
tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
(call,) = fake.bind_tools([tool]).invoke(CALL).tool_calls
assert (call["name"], call["args"]) == ("get_weather", {"city": CITY})
vectors = OpenAIEmbeddings(base_url=f"{GUIDE}/v1", api_key="none", model=MODEL, check_embedding_ctx_length=False)
assert len(vectors.embed_documents(["a", "b"])) == 2
