"""Request bodies for the fuzz test: fields of every endpoint with values of any kind, and nearly right nested ones."""

import json

from hypothesis import strategies as st
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from tests.unit.router.conftest import MODEL_NAME

SCHEMAS = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": AnthropicMessagesRequest,
}
OPTIONS = ("speculative_prefill", "speculative_decode")


def minimal_body(path):
    """The smallest body that the endpoint answers."""
    messages = [{"role": "user", "content": "x"}]
    prompt = {
        "/v1/chat/completions": {"messages": messages},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": messages},
    }[path]
    return {"model": MODEL_NAME, "max_output_tokens" if path == "/v1/responses" else "max_tokens": 2, **prompt}


TEXTS = st.sampled_from(
    ["", "x", "\x00", "auto", "none", "required", "function", "user", "text", "a" * 300, "1", "*", "{{ x }}"]
) | st.text(max_size=8)
_FITTING = st.sampled_from(
    [0, 1, -1, 2, 5, 31, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 0.5, -0.0, 1.5]
)
_UNSENDABLE = st.sampled_from([2**64, 2**65, -(2**63) - 1, 10**30, float("inf"), float("nan"), "\ud800"])
NUMBERS = st.integers(0, 31).flatmap(lambda i: _UNSENDABLE if i == 0 else _FITTING)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
# Names that vLLM looks for inside nested objects.
_NAMES_TEXT = (
    "type role content name function parameters arguments tool_calls text schema json json_schema regex"
    " choice grammar structural_tag id call_id input output format input_schema image_url url effort tools"
    " include_usage structures triggers begin end source tool_use_id thinking reasoning summary enabled"
    " keep_rate max_pattern_size 1"
)
NAMES = st.sampled_from(_NAMES_TEXT.split())
_KINDS_TEXT = (
    "text image_url input_audio function function_call function_call_output message reasoning json_schema"
    " json_object structural_tag tool_use tool_result thinking output_text refusal input_text input_image"
    " mcp namespace tool any web_search_preview custom"
)
KINDS = st.sampled_from(_KINDS_TEXT.split())
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "developer", "other"])


def _objects(values):
    typed = {"type": KINDS, "role": ROLES}
    return st.dictionaries(NAMES, values, max_size=4) | st.fixed_dictionaries(
        {}, optional={**typed, "content": values, "function": values, "name": TEXTS, "text": values, "id": TEXTS}
    )


JSON = st.recursive(SCALARS, lambda values: st.lists(values, max_size=3) | _objects(values), max_leaves=8)

_PARTS = st.fixed_dictionaries({"type": KINDS}, optional={"text": JSON, "image_url": JSON, "content": JSON})
_CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXTS,
        "type": KINDS,
        "function": st.fixed_dictionaries({}, optional={"name": TEXTS, "arguments": JSON}),
    },
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES},
        optional={
            "content": TEXTS | st.lists(_PARTS, max_size=2) | JSON,
            "tool_calls": st.lists(_CALLS, max_size=2) | JSON,
        }
        | {"name": JSON, "tool_call_id": JSON, "reasoning_content": JSON},
    ),
    min_size=1,
    max_size=3,
)
_ITEMS = st.lists(
    st.fixed_dictionaries({"type": KINDS}, optional={"role": ROLES, "content": TEXTS | st.lists(_PARTS, max_size=2)})
    | _MESSAGES.map(lambda messages: messages[0])
    | JSON,
    max_size=3,
)
_TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": KINDS}, optional={"name": JSON, "input_schema": JSON, "parameters": JSON, "function": JSON}
    )
    | JSON,
    max_size=2,
)
NEARLY_RIGHT = {
    "messages": _MESSAGES,
    "input": TEXTS | _ITEMS,
    "tools": _TOOLS,
    "prompt": TEXTS | st.lists(NUMBERS, max_size=4) | st.lists(st.lists(NUMBERS, max_size=2) | TEXTS, max_size=2),
    "tool_choice": _CALLS | KINDS,
    "response_format": st.fixed_dictionaries({"type": KINDS}, optional={"json_schema": JSON, "structures": JSON}),
    "structured_outputs": _objects(JSON),
    "stop": TEXTS | st.lists(TEXTS, max_size=2),
    "logit_bias": st.dictionaries(TEXTS | NUMBERS.map(str), NUMBERS, max_size=2),
    "stream": st.booleans(),
}


@st.composite
def bodies(draw, path):
    """JSON bytes of a request to `path` with one to four fields of any value."""
    names = [*SCHEMAS[path].model_fields, *OPTIONS, "not_a_field"]
    body = minimal_body(path)
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)):
        body[name] = draw(NEARLY_RIGHT[name] | JSON if name in NEARLY_RIGHT else JSON)
    if draw(st.booleans()):
        body["model"] = MODEL_NAME
    return json.dumps(body).encode()
