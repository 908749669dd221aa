"""The n growing answers of a request: stop rules, detokenization, and the part that was already sent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers.decoders import DecodeStream

from benchmarks.mock_engines.sampling import Sampling
from kv_transfer.messages import DELTA, FINAL_ONLY, Completion, GenerateOutput, TokenLogprob


class NewToken(NamedTuple):
    """One decoded token of one answer. candidates: the entries for logprobs, the token itself first."""

    id: int
    logprob: float
    candidates: list[TokenLogprob]


class Answers:
    """All n answers. They advance together; a stopped answer waits for the others.

    answered: the start of the answer, which was sent before (`GenerateRequest.answered`).
    on_first_output: fields of GenerateOutput that are sent once (timings, prompt_logprobs).
    """

    def __init__(
        self,
        sampling: Sampling,
        max_tokens: int,
        tokenizer: Any,
        answered: Sequence[int] = (),
    ) -> None:
        self._answers = [_Answer(i, sampling, max_tokens, tokenizer) for i in range(sampling.n)]
        for answer in self._answers:
            answer.resume(answered)
        self._output_kind, self._interval = sampling.output_kind, sampling.stream_interval or 1
        self._grown: list[_Answer] = []
        self.on_first_output: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether a token was added."""
        return bool(self._grown)

    @property
    def finished(self) -> bool:
        return all(a.finish_reason for a in self._answers)

    def add(self, step: Sequence[NewToken]) -> None:
        """Add the tokens of one step, one per answer. Tokens of stopped answers are dropped."""
        self._grown = [a for a in self._answers if a.finish_reason is None]
        for answer in self._grown:
            answer.add(step[answer.index])

    def output(self) -> GenerateOutput | None:
        """The output to send after this step, by `output_kind` and `stream_interval`; None if there is none."""
        if self._output_kind == FINAL_ONLY:
            sent = self._answers if self.finished else []
        else:
            sent = [answer for answer in self._grown if answer.is_due(self._interval)]
        if not sent:
            return None
        once, self.on_first_output = self.on_first_output, {}
        return GenerateOutput([a.completion() for a in sent], self.finished, **once)


class _Answer:
    def __init__(self, index: int, sampling: Sampling, max_tokens: int, tokenizer: Any) -> None:
        self.index, self._sampling, self._max_tokens = index, sampling, max_tokens
        self._backend = tokenizer.backend_tokenizer
        self._decode = DecodeStream(skip_special_tokens=sampling.skip_special_tokens)
        self._stop_ids = set(sampling.stop_token_ids or ())
        # This many characters are not sent yet, because a stop string may begin in them.
        self._held_back = max((len(s) - 1 for s in sampling.stop_strings), default=0)
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._logprobs: list[list[TokenLogprob]] = []
        self._cumulative = 0.0
        self._text = ""
        self._sent_tokens = self._sent_text = self._resumed = 0

    def resume(self, token_ids: Sequence[int]) -> None:
        """Continue after tokens that were sent before, with the text that was held back then."""
        for id in token_ids:
            self.token_ids.append(id)
            self._text += self._decode.step(self._backend, id) or ""
        self._sent_text = max(len(self._text) - self._held_back, 0)
        self._sent_tokens = self._resumed = len(self.token_ids)

    def is_due(self, interval: int) -> bool:
        """Whether to send it now: its first token, its end, and each time that it has `interval` new tokens."""
        unsent = len(self.token_ids) - self._sent_tokens
        return self._sent_tokens == 0 or self.finish_reason is not None or unsent >= interval

    def add(self, token: NewToken) -> None:
        self.token_ids.append(token.id)
        self._cumulative += token.logprob
        self._logprobs.append(token.candidates)
        if token.id in self._stop_ids:
            self.finish_reason, self._stop_reason = "stop", token.id
            return
        self._text += self._decode.step(self._backend, token.id) or ""
        self._stop_at_string()
        if self.finish_reason is None and len(self.token_ids) >= self._max_tokens:
            self.finish_reason = "length"

    def _stop_at_string(self) -> None:
        found = [(at, s) for s in self._sampling.stop_strings if (at := self._text.find(s)) >= 0]
        if found:
            at, self._stop_reason = min(found)
            self._text, self.finish_reason = self._text[:at], "stop"

    def completion(self) -> Completion:
        """The part since the last call (DELTA), or the whole answer so far (CUMULATIVE, FINAL_ONLY)."""
        end = len(self._text) if self.finish_reason else max(len(self._text) - self._held_back, self._sent_text)
        delta = self._sampling.output_kind == DELTA
        tokens, text = (self._sent_tokens, self._sent_text) if delta else (0, 0)
        self._sent_tokens, self._sent_text = len(self.token_ids), end
        asked = self._sampling.logprobs is not None
        return Completion(
            index=self.index,
            text=self._text[text:end],
            token_ids=np.asarray(self.token_ids[tokens:], np.int32),
            logprobs=self._logprobs[max(tokens - self._resumed, 0) :] if asked else None,
            cumulative_logprob=self._cumulative if asked else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )
