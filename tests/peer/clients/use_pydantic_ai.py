import asyncio
from typing import Literal

from checks import COLOURS, MODEL, NOBODY, QUESTION, RESULT, URL, refusal, run
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Colour(BaseModel):
    colour: Literal["blue", "green", "red"]


def agent(name: str = MODEL, **options: object) -> Agent:
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none"))
    return Agent(model, model_settings={"max_tokens": 60}, **options)


def chat() -> None:
    result = agent().run_sync(QUESTION)
    assert result.output
    assert result.usage.input_tokens > 1000


def stream() -> None:
    async def text() -> str:
        async with agent().run_stream(QUESTION) as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    assert asyncio.run(text()) == agent().run_sync(QUESTION).output


def tools() -> None:
    """A model without text as an output has to call a tool; the answer is a tool's call, too."""
    asking, asked = agent(output_type=Colour), []

    @asking.tool_plain
    def look_up(gate: Literal["7", "8"]) -> str:
        """The code of a gate."""
        asked.append(gate)
        return RESULT

    try:
        output = asking.run_sync(QUESTION, usage_limits=UsageLimits(request_limit=3)).output.colour
    except Exception:
        assert asked, "neither a tool nor the output was called"
    else:
        assert output in COLOURS


def structured() -> None:
    assert agent(output_type=NativeOutput(Colour)).run_sync(QUESTION).output.colour in COLOURS


def error() -> None:
    found = refusal(lambda: agent(NOBODY).run_sync(QUESTION), ModelHTTPError)
    assert found.status_code == 404
    assert NOBODY in found.body["message"]


run(chat, stream, tools, structured, error)
