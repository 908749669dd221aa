import openai
from checks import COLOURS, MODEL, NOBODY, QUESTION, RESULT, TOOL, URL, is_call, refusal, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

QUESTIONS = [HumanMessage(QUESTION)]


class Colour(BaseModel):
    colour: str = Field(json_schema_extra={"enum": COLOURS})


def model(name: str = MODEL, max_tokens: int = 60) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=f"{URL}/v1", api_key="none", max_retries=0, max_tokens=max_tokens)


def chat() -> None:
    answer = model(max_tokens=12).invoke(QUESTIONS)
    assert answer.content
    assert answer.usage_metadata["input_tokens"] > 1000


def stream() -> None:
    whole = model(max_tokens=12).invoke(QUESTIONS)
    assert "".join(chunk.content for chunk in model(max_tokens=12).stream(QUESTIONS)) == whole.content


def tools() -> None:
    first = model().bind_tools([TOOL], tool_choice="required").invoke(QUESTIONS)
    [call] = first.tool_calls
    assert is_call(call["name"], call["args"])
    result = ToolMessage(RESULT, tool_call_id=call["id"])
    assert model().bind_tools([TOOL], tool_choice="none").invoke([*QUESTIONS, first, result]).content


def structured() -> None:
    answer = model().with_structured_output(Colour, method="json_schema").invoke(QUESTIONS)
    assert answer.colour in COLOURS


def error() -> None:
    found = refusal(lambda: model(NOBODY).invoke(QUESTIONS), openai.NotFoundError)
    assert NOBODY in found.body["message"]


run(chat, stream, tools, structured, error)
