"""instructor: an object of a class, over tools and over a JSON schema."""

from __future__ import annotations

import instructor
import openai
from asking import FAKE, GUIDE, MODEL, QUESTION
from pydantic import BaseModel


class Choice(BaseModel):
    """What a grammar can make sure of, whatever the model knows."""

    is_good: bool


class Weather(BaseModel):
    """What the fake model calls."""

    city: str


by_schema = instructor.from_openai(
    openai.OpenAI(base_url=f"{GUIDE}/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA
)
question = [{"role": "user", "content": QUESTION}]
assert isinstance(by_schema.create(model=MODEL, messages=question, response_model=Choice, max_retries=0), Choice)

by_tools = instructor.from_openai(openai.OpenAI(base_url=f"{FAKE}/v1", api_key="none"), mode=instructor.Mode.TOOLS)
call = '<say><tool_call>\n{"name": "Weather", "arguments": {"city": "Oslo"}}\n</tool_call></say>'
asked = [{"role": "user", "content": call}]
assert by_tools.create(model=MODEL, messages=asked, response_model=Weather, max_retries=0).city == "Oslo"
