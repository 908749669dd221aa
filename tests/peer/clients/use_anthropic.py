import anthropic
from checks import COLOURS, GATE, MESSAGES, MODEL, NOBODY, RESULT, URL, is_call, refusal, run

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": COLOURS}},
    "required": ["colour"],
    "additionalProperties": False,
}


def chat() -> None:
    answer = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    assert answer.content[0].text
    assert answer.usage.input_tokens > 1000


def stream() -> None:
    whole = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=12) as events:
        assert "".join(events.text_stream) == whole.content[0].text
        assert events.get_final_message().usage.input_tokens == whole.usage.input_tokens


def tools() -> None:
    tool = {"name": "look_up", "description": "The code of a gate.", "input_schema": GATE}
    asked = {"model": MODEL, "tools": [tool], "max_tokens": 60}
    first = client.messages.create(messages=MESSAGES, tool_choice={"type": "any"}, **asked)
    [call] = [part for part in first.content if part.type == "tool_use"]
    assert is_call(call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    second = client.messages.create(messages=[*MESSAGES, *turns], tool_choice={"type": "none"}, **asked)
    assert second.content[0].text


def structured() -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=60, output_config=config)
    assert any(colour in answer.content[0].text for colour in COLOURS)
    assert answer.content[0].text.startswith("{")


def error() -> None:
    found = refusal(
        lambda: client.messages.create(model=NOBODY, messages=MESSAGES, max_tokens=1), anthropic.NotFoundError
    )
    assert found.body["type"] == "error"
    assert NOBODY in found.body["error"]["message"]


run(chat, stream, tools, structured, error)
