import asyncio
from typing import Literal

import openai
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from checks import COLOURS, GATES, MODEL, NOBODY, QUESTION, RESULT, URL, refusal, run
from pydantic import BaseModel

set_tracing_disabled(True)


class Colour(BaseModel):
    colour: Literal["blue", "green", "red"]


def agent(name: str = MODEL, tool_choice: str | None = None, **options: object) -> Agent:
    """A client of its own for each, since each run has an event loop of its own."""
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    settings = ModelSettings(max_tokens=200, tool_choice=tool_choice)  # an answer that is cut is an error to it
    return Agent("keeper", model=OpenAIResponsesModel(name, client), model_settings=settings, **options)


def chat() -> None:
    result = Runner.run_sync(agent(), QUESTION)
    assert result.final_output
    assert result.raw_responses[0].usage.input_tokens > 1000


def stream() -> None:
    async def text() -> str:
        result = Runner.run_streamed(agent(), QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    assert asyncio.run(text()) == Runner.run_sync(agent(), QUESTION).final_output


def tools() -> None:
    asked = []

    @function_tool
    def look_up(gate: Literal["7", "8"]) -> str:
        """The code of a gate."""
        asked.append(gate)
        return RESULT

    result = Runner.run_sync(agent(tools=[look_up], tool_choice="required"), QUESTION, max_turns=3)
    assert set(asked) <= set(GATES)
    assert asked
    assert result.final_output


def structured() -> None:
    assert Runner.run_sync(agent(output_type=Colour), QUESTION).final_output.colour in COLOURS


def error() -> None:
    found = refusal(lambda: Runner.run_sync(agent(NOBODY), QUESTION), openai.NotFoundError)
    assert NOBODY in found.body["message"]


run(chat, stream, tools, structured, error)
