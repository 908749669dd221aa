from typing import Literal

import openai
from checks import COLOURS, MODEL, NOBODY, QUESTION, RESULT, URL, is_call, refusal, run
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Colour(BaseModel):
    colour: Literal["blue", "green", "red"]


def look_up(gate: Literal["7", "8"]) -> str:
    """The code of a gate."""
    return RESULT


def model(name: str = MODEL, max_tokens: int = 60) -> OpenAILike:
    """It must be told what the endpoint can do: else it asks for completions. Its tools are not strict by default.

    Then their schema does not bind the arguments, and a small model writes others.
    """
    can = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
    can["strict"] = True
    asked = {"api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0, "context_window": 8192, "temperature": 0}
    return OpenAILike(model=name, max_tokens=max_tokens, **can, **asked)


QUESTIONS = [ChatMessage(QUESTION)]


def chat() -> None:
    answer = model(max_tokens=12).chat(QUESTIONS)
    assert answer.message.content
    assert answer.raw.usage.prompt_tokens > 1000


def stream() -> None:
    whole = model(max_tokens=12).chat(QUESTIONS).message.content
    assert "".join(part.delta or "" for part in model(max_tokens=12).stream_chat(QUESTIONS)) == whole


def tools() -> None:
    tool = FunctionTool.from_defaults(look_up)
    first = model().chat_with_tools([tool], chat_history=[*QUESTIONS], tool_required=True)
    [call] = model().get_tool_calls_from_response(first)
    assert is_call(call.tool_name, call.tool_kwargs)
    answered = {"tool_call_id": call.tool_id}
    result = ChatMessage(tool(**call.tool_kwargs).content, role="tool", additional_kwargs=answered)
    history = [*QUESTIONS, first.message, result]
    assert model().chat_with_tools([tool], chat_history=history, tool_choice="none").message.content


def structured() -> None:
    question = PromptTemplate("{question}")
    assert model().structured_predict(Colour, question, question=QUESTION).colour in COLOURS


def error() -> None:
    found = refusal(lambda: model(NOBODY).chat(QUESTIONS), openai.NotFoundError)
    assert NOBODY in found.body["message"]


run(chat, stream, tools, structured, error)
