"""Its tool call is the answer itself, so that a result goes back as a message of the user."""

from typing import Literal

import instructor
import openai
from checks import COLOURS, GATES, MESSAGES, MODEL, NOBODY, RESULT, URL, refusal, run
from pydantic import BaseModel


class Colour(BaseModel):
    colour: Literal["blue", "green", "red"]


class LookUp(BaseModel):
    """The code of a gate."""

    gate: Literal["7", "8"]


client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
calling = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
writing = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
ASKED = {"model": MODEL, "max_tokens": 60, "max_retries": 0}


def chat() -> None:
    answer = writing.create(messages=MESSAGES, response_model=None, **ASKED)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 1000


def stream() -> None:
    parts = list(writing.create_partial(messages=MESSAGES, response_model=Colour, **ASKED))
    assert parts[-1].colour == writing.create(messages=MESSAGES, response_model=Colour, **ASKED).colour


def tools() -> None:
    call, answer = calling.create_with_completion(messages=MESSAGES, response_model=LookUp, **ASKED)
    assert call.gate in GATES
    assert answer.choices[0].message.tool_calls[0].function.name == "LookUp"
    turns = [{"role": "assistant", "content": call.model_dump_json()}, {"role": "user", "content": RESULT}]
    assert calling.create(messages=[*MESSAGES, *turns], response_model=Colour, **ASKED).colour in COLOURS


def structured() -> None:
    assert writing.create(messages=MESSAGES, response_model=Colour, **ASKED).colour in COLOURS


def error() -> None:
    found = refusal(
        lambda: writing.create(messages=MESSAGES, response_model=Colour, **{**ASKED, "model": NOBODY}), Exception
    )
    assert NOBODY in str(found), found


run(chat, stream, tools, structured, error)
