import litellm
from checks import COLOURS, MESSAGES, MODEL, NOBODY, RESULT, TOOL, URL, is_call, refusal, run
from pydantic import BaseModel, Field

ASKED = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0}


class Colour(BaseModel):
    colour: str = Field(json_schema_extra={"enum": COLOURS})


def chat() -> None:
    answer = litellm.completion(messages=MESSAGES, max_tokens=12, **ASKED)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 1000


def stream() -> None:
    whole = litellm.completion(messages=MESSAGES, max_tokens=12, **ASKED)
    chunks = list(litellm.completion(messages=MESSAGES, max_tokens=12, stream=True, **ASKED))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content


def tools() -> None:
    asked = {**ASKED, "tools": [TOOL], "max_tokens": 60}
    first = litellm.completion(messages=MESSAGES, tool_choice="required", **asked).choices[0].message
    call = first.tool_calls[0]
    assert is_call(call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    second = litellm.completion(messages=[*MESSAGES, first.model_dump(), result], tool_choice="none", **asked)
    assert second.choices[0].message.content


def structured() -> None:
    answer = litellm.completion(messages=MESSAGES, response_format=Colour, max_tokens=60, **ASKED)
    assert Colour.model_validate_json(answer.choices[0].message.content).colour in COLOURS


def error() -> None:
    found = refusal(
        lambda: litellm.completion(messages=MESSAGES, **{**ASKED, "model": f"openai/{NOBODY}"}), litellm.NotFoundError
    )
    assert NOBODY in found.message


run(chat, stream, tools, structured, error)
