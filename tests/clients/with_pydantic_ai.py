"""pydantic-ai over chat completions and over responses: chat, stream, tools with a typed answer in its three ways."""

from __future__ import annotations

import asyncio

from asking import ANSWER, CALL, CITY, FAKE, GUIDE, MODEL, QUESTION, assert_idle, say
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

guide = OpenAIProvider(base_url=f"{GUIDE}/v1", api_key="none")
fake = OpenAIProvider(base_url=f"{FAKE}/v1", api_key="none")


class Weather(BaseModel):
    """What the agent answers with."""

    city: str


def get_weather(city: str) -> str:
    """Tell the weather."""
    return say(Weather(city=city).model_dump_json())


def get_weather_by_call(city: str) -> str:
    """Tell the weather, to a model that answers with a call."""
    arguments = Weather(city=city).model_dump_json()
    return say(f'<tool_call>\n{{"name": "final_result", "arguments": {arguments}}}\n</tool_call>')


async def main() -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        asking = Agent(kind(MODEL, provider=guide))
        whole = await asking.run(QUESTION, model_settings={"temperature": 0})
        assert ANSWER in whole.output
        async with asking.run_stream(QUESTION, model_settings={"temperature": 0}) as streamed:
            *_, text = [part async for part in streamed.stream_text()]
        assert text == whole.output
        again = await asking.run("And then?", message_history=whole.new_messages())
        assert again.usage.input_tokens > whole.usage.input_tokens

        for output in (NativeOutput(Weather), PromptedOutput(Weather)):
            native = Agent(kind(MODEL, provider=fake), output_type=output, tools=[get_weather])
            assert (await native.run(CALL)).output == Weather(city=CITY), (kind, output)
        by_call = Agent(kind(MODEL, provider=fake), output_type=Weather)
        by_call.tool_plain(name="get_weather")(get_weather_by_call)
        assert (await by_call.run(CALL)).output == Weather(city=CITY), kind
    assert_idle(FAKE)


asyncio.run(main())
