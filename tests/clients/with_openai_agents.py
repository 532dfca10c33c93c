"""OpenAI's Agents SDK over both of its APIs: an agent with tools and a typed answer, streamed, and a session that the
server keeps."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from asking import ANSWER, CALL, CITY, FAKE, GUIDE, MODEL, QUESTION, assert_idle, say
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(disabled=True)
guide = AsyncOpenAI(base_url=f"{GUIDE}/v1", api_key="none", max_retries=0)
fake = AsyncOpenAI(base_url=f"{FAKE}/v1", api_key="none", max_retries=0)


class Weather(BaseModel):
    """What the agent answers with."""

    city: str


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather."""
    return say(Weather(city=city).model_dump_json())


async def main() -> None:
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        asking = Agent(name="guide", model=kind(MODEL, guide))
        assert ANSWER in (await Runner.run(asking, QUESTION)).final_output
        streamed = Runner.run_streamed(asking, QUESTION)
        deltas = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
        assert any(delta.type == "response.output_text.delta" for delta in deltas)
        assert ANSWER in streamed.final_output

        calling = Agent(name="weather", model=kind(MODEL, fake), tools=[get_weather], output_type=Weather)
        result = await Runner.run(calling, CALL)
        assert result.final_output == Weather(city=CITY), kind
        streamed = Runner.run_streamed(calling, CALL)
        assert [event async for event in streamed.stream_events()]
        assert streamed.final_output == Weather(city=CITY), kind

    talking = Agent(name="talking", model=OpenAIResponsesModel(MODEL, fake))
    first = await Runner.run(talking, f"Remember {say('blue')}.")
    second = await Runner.run(talking, "Which one?", previous_response_id=first.last_response_id)
    assert second.final_output == "blue", "the service keeps the response"
    session = OpenAIConversationsSession(openai_client=fake)
    await Runner.run(talking, f"Remember {say('green')}.", session=session)
    assert (await Runner.run(talking, "Which one?", session=session)).final_output == "green"
    assert len(await session.get_items()) == 4, "two questions and their answers"
    assert_idle(FAKE)


asyncio.run(main())
