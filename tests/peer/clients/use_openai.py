import openai
from checks import COLOURS, MESSAGES, MODEL, NOBODY, RESULT, TOOL, URL, is_call, refusal, run
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


class Colour(BaseModel):
    colour: str = Field(json_schema_extra={"enum": COLOURS})


def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 1000


def stream() -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def tools() -> None:
    asked = {"model": MODEL, "tools": [TOOL], "max_tokens": 60}
    first = client.chat.completions.create(messages=MESSAGES, tool_choice="required", **asked).choices[0].message
    call = first.tool_calls[0]
    assert is_call(call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    second = client.chat.completions.create(messages=[*MESSAGES, first, result], tool_choice="none", **asked)
    assert second.choices[0].message.content


def structured() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Colour, max_tokens=60)
    assert answer.choices[0].message.parsed.colour in COLOURS


def error() -> None:
    found = refusal(lambda: client.chat.completions.create(model=NOBODY, messages=MESSAGES), openai.NotFoundError)
    assert NOBODY in found.body["message"]


run(chat, stream, tools, structured, error)
