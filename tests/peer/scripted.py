"""A target for coding agents: it calls three of the tools that it is offered, one after the other, and then answers."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from benchmarks.mock_engines.answer import Answers, NewToken
from benchmarks.mock_engines.sampling import Sampling
from benchmarks.mock_engines.target import MockTarget
from kv_transfer.messages import GenerateOutput, GenerateRequest, TokenLogprob

SLOW = "count to a thousand"
"""A task with these words gets a long answer, in which it can be stopped."""
TASK = "order 4711"
"""A task with these words gets calls of tools."""

_SHELLS = ("Bash", "bash", "exec_command", "run_shell_command")
_READERS = ("Read", "read", "read_file")
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_end\|>)", re.DOTALL)


class ScriptedTarget(MockTarget):
    """It understands prompts of `chat_template.jinja`. file: the path of a long file, which the second call reads."""

    def __init__(self, model: str, *, file: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._file = file

    async def _answer(
        self, request: GenerateRequest, sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[GenerateOutput, None]:
        end = self._tokenizer.eos_token_id
        sampling = msgspec.structs.replace(sampling, stop_token_ids=[*(sampling.stop_token_ids or []), end])
        answers = Answers(sampling, max_tokens, self._tokenizer)
        said, pause_s = self._script(self._tokenizer.decode(request.prompt.token_ids.tolist()))
        for id in [*self._tokenizer.encode(said, add_special_tokens=False), end]:
            await asyncio.sleep(pause_s)
            answers.add([NewToken(id, 0.0, [TokenLogprob(id, 0.0, 1)])])
            if (output := answers.output()) is not None:
                yield output
            if answers.finished:
                return

    def _script(self, prompt: str) -> tuple[str, float]:
        """The answer, and the seconds before each of its tokens."""
        turns = _TURN.findall(prompt)
        asked = max(index for index, (role, _) in enumerate(turns) if role == "user")
        results = sum(role == "tool" for role, _ in turns[asked:])
        if SLOW in turns[asked][1]:
            return " ".join(map(str, range(1000))), 0.05
        tools = [
            json.loads(line)["function"] for line in re.findall(r'^\{"type": "function".*\}$', prompt, re.MULTILINE)
        ]
        shell, reader = ([t for t in tools if t["name"] in names][:1] for names in (_SHELLS, _READERS))
        calls = [*shell, *(reader or shell), *shell]
        if TASK in turns[asked][1] and results < len(calls):
            call = {"name": calls[results]["name"], "arguments": self._arguments(calls[results], results)}
            return f"I look.\n<tool_call>{json.dumps(call)}</tool_call>", 0.0
        users = sum(role == "user" for role, _ in turns)
        return f"DONE results={results} users={users}", 0.0

    def _arguments(self, tool: dict[str, Any], index: int) -> dict[str, Any]:
        """Values for what the tool requires."""
        by_type = {"boolean": False, "integer": 60_000, "number": 60_000}
        values: dict[str, Any] = {}
        for name in {
            *tool["parameters"].get("required", ()),
            *({"command", "cmd"} & tool["parameters"]["properties"].keys()),
        }:
            values[name] = by_type.get(tool["parameters"]["properties"][name].get("type"), "looks")
            if "path" in name.lower():
                values[name] = self._file
            elif name in ("command", "cmd"):
                values[name] = f"cat {self._file}" if index == 1 else f"wc -l {self._file}"
        return values
