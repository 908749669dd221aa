"""Request bodies for the fuzz test: fields of every endpoint with values of any kind, nearly right nested ones, and
large ones."""

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
OPTIONS = ("speculative_prefill", "speculative_decode", "context_management")


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
    " keep_rate max_pattern_size 1 edits trigger keep value"
)
NAMES = st.sampled_from(_NAMES_TEXT.split())
_KINDS_TEXT = (
    "text image_url input_audio function function_call function_call_output message reasoning json_schema"
    " json_object structural_tag tool_use tool_result thinking output_text refusal input_text input_image"
    " mcp namespace tool any web_search_preview custom clear_tool_uses_20250919 clear_thinking_20251015 tool_uses"
)
KINDS = st.sampled_from(_KINDS_TEXT.split())
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "developer", "other"])


def _objects(values):
    typed = {"type": KINDS, "role": ROLES}
    return st.dictionaries(NAMES, values, max_size=4) | st.fixed_dictionaries(
        {}, optional={**typed, "content": values, "function": values, "name": TEXTS, "text": values, "id": TEXTS}
    )


JSON = st.recursive(SCALARS, lambda values: st.lists(values, max_size=3) | _objects(values), max_leaves=8)

KEEPS = st.sampled_from(["always", "auto", 0.3, 1, 0, 2, "x", None, True])
_PARTS = st.fixed_dictionaries(
    {"type": KINDS}, optional={"text": JSON, "image_url": JSON, "content": JSON, "keep": KEEPS}
)
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
        | {"name": JSON, "tool_call_id": JSON, "reasoning_content": JSON, "keep": KEEPS},
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
    "context_management": st.fixed_dictionaries(
        {
            "edits": st.lists(
                st.fixed_dictionaries({"type": KINDS}, optional={"trigger": JSON, "keep": JSON}), max_size=2
            )
        }
    ),
}

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA}
_SHARE, _FLAG, _NAME = st.floats(0.01, 1), st.booleans(), st.sampled_from(["a", "b"])
_COUNT, _PENALTY = st.integers(1, 20), st.floats(-2, 2)
RIGHT = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), _PENALTY),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty"), _SHARE),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "truncate_prompt_tokens"), _COUNT),
    **dict.fromkeys(("top_k", "n", "seed", "priority", "stream_interval", "max_tool_calls"), _COUNT),
    **dict.fromkeys(("user", "session_id", "request_id", "cache_salt", "prompt_cache_key", "instructions"), _NAME),
    **dict.fromkeys(("echo", "ignore_eos", "add_special_tokens", "return_token_ids", "use_beam_search"), _FLAG),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"), _FLAG),
    **dict.fromkeys(("return_tokens_as_token_ids", "return_prompt_text", "parallel_tool_calls", "stream"), _FLAG),
    **dict.fromkeys(("store", "add_generation_prompt", "include_reasoning", "enable_response_messages"), _FLAG),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), st.lists(st.integers(0, 700), min_size=1, max_size=3)),
    **dict.fromkeys(("stop", "stop_sequences", "bad_words"), st.just(["a", "b"])),
    "min_tokens": st.integers(0, 2),
    "logprobs": _FLAG | st.integers(0, 3),
    "top_logprobs": st.integers(0, 3),
    "prompt_logprobs": st.integers(0, 2),
    "logit_bias": st.just({"40": 3.5}),
    "messages": st.just([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])
    | st.sampled_from(["always", 0.5]).map(lambda keep: [{"role": "user", "content": "y", "keep": keep}]),
    "prompt": st.just([20, 21, 22]) | st.just(["a", "b"]),
    "input": st.just([{"role": "user", "content": "y"}]),
    "system": st.just("x"),
    "structured_outputs": st.sampled_from([{"choice": ["a", "b"]}, {"json": _SCHEMA}, {"regex": "[0-9]+"}]),
    "response_format": st.sampled_from(
        [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}]
    ),
    "tools": st.sampled_from(
        [
            [{"type": "function", "function": _FUNCTION}],
            [{"type": "function", **_FUNCTION}],
            [{"name": "f", "input_schema": _SCHEMA}],
        ]
    ),
    "tool_choice": st.sampled_from(["none", {"type": "none"}, "auto"]),
    "metadata": st.just({"a": "b"}),
    "chat_template_kwargs": st.just({"add_generation_prompt": False}),
    "documents": st.just([{"title": "t", "text": "x"}]),
    "reasoning_effort": st.just("low"),
    "reasoning": st.just({"effort": "low"}),
    "repetition_detection": st.just({"max_pattern_size": 3, "min_count": 2}),
    "stream_options": st.just({"include_usage": True}),
    "truncation": st.just("auto"),
    "service_tier": st.just("flex"),
    "vllm_xargs": st.just({"a": 1}),
    "speculative_prefill": st.sampled_from(
        [
            True,
            False,
            "always",
            {"keep_rate": 0.5},
            {"keep_by_role": {"user": 0.5}},
            {"protect_tools": ["f"], "keep_short": 0},
        ]
    ),
    "speculative_decode": st.sampled_from([True, False, {"max_draft_tokens": 2}]),
    "context_management": st.just(
        {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 0}}]}
    ),
}
"""Values that a request may have."""


OPENINGS = {
    "[": "]",
    '{"a":': "}",
    '[{"type":"text","keep":"auto","content":': "}]",
    '{"type":"object","properties":{"a":': "}}",
}
_ITEMS_OF_MANY = ['"x"', "1", "[]", '{"role":"user","content":"x"}', '{"type":"text","text":"x","keep":0.5}']
_REPEATED = ["\n", " ", ": ", "1", '"', "\\", "[", "(", "/a", "a_1 ", "list all ", "\U000f0000", "<|im_end|>"]
AROUND = ["%s", '[{"role":"user","content":%s}]', '[{"type":"function","function":{"name":"f","parameters":%s}}]']


LEVELS = (90, 300, 900, 5000)
"""json.loads takes about 990 levels, and fewer where the call stack is deep."""


def deep(opening, levels, closed=True):
    """A JSON text of about so many levels."""
    many = levels // (opening.count("[") + opening.count("{"))
    return opening * many + '"x"' + OPENINGS[opening] * (many if closed else 0)


def with_field(path, name, raw, options="always"):
    """A body with one field that is given as JSON text."""
    body = {**minimal_body(path), "speculative_prefill": options}
    return f"{json.dumps(body)[:-1]}, {json.dumps(name)}: {raw}}}".encode()


def deep_bodies(path):
    """Bodies whose prompt is deep in every way, beside those of `large_bodies`."""
    for name in read_fields(path):
        for opening in OPENINGS:
            for around in AROUND[:2]:
                yield with_field(path, name, around % deep(opening, 900))


def read_fields(path):
    return [name for name in ("messages", "input", "system", "prompt") if name in SCHEMAS[path].model_fields]


@st.composite
def _wide(draw):
    item, many = draw(st.sampled_from(_ITEMS_OF_MANY)), draw(st.sampled_from([50, 500, 3000]))
    names = (f'"k{number}": {item}' for number in range(many))
    same = ",".join(['"k": 1'] * many)
    return draw(st.sampled_from([f"{{{','.join(names)}}}", f"[{','.join([item] * many)}]", f"{{{same}}}"]))


_LONG = st.builds(lambda piece, many: json.dumps(piece * many), st.sampled_from(_REPEATED), st.sampled_from([50, 3000]))
_DEEP = st.builds(deep, st.sampled_from(list(OPENINGS)), st.sampled_from(LEVELS), st.booleans())
_RAW = _DEEP | _wide() | _LONG | (_DEEP | _wide()).map(json.dumps)
"""JSON texts: deep, wide, or the same again and again; also inside a text."""


@st.composite
def large_bodies(draw, path):
    """As `bodies`, with one field that is deep, wide or repeated."""
    names = [*SCHEMAS[path].model_fields, *OPTIONS, "not_a_field"]
    name = draw(st.sampled_from(read_fields(path)) | st.sampled_from(names))
    options = draw(st.sampled_from([True, "always", {"keep_short": 0}]))
    return with_field(path, name, draw(st.sampled_from(AROUND)) % draw(_RAW), options)


@st.composite
def bodies(draw, path):
    """JSON bytes of a request to `path` with one to four fields: half of them right, half of any value."""
    names = [*SCHEMAS[path].model_fields, *OPTIONS, "not_a_field"]
    body = minimal_body(path)
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)):
        if name in RIGHT and draw(st.booleans()):
            body[name] = draw(RIGHT[name])
        else:
            body[name] = draw(NEARLY_RIGHT[name] | JSON if name in NEARLY_RIGHT else JSON)
    if draw(st.booleans()):
        body["model"] = MODEL_NAME
    return json.dumps(body).encode()
