"""The log probabilities of a prompt travel in several messages, each of which takes milliseconds to write and to
read."""

from collections.abc import Iterator
from dataclasses import replace

from kv_transfer.messages import GenerateOutput, TokenLogprob

PIECE_LOGPROBS = 2**13
"""Log probabilities in one message, if a position has fewer."""

PromptLogprobs = list[list[TokenLogprob] | None]


def pieces(output: GenerateOutput) -> Iterator[GenerateOutput]:
    """The output as one message, or as several with a part of `prompt_logprobs` each; the last one has the rest."""
    positions, begin, held = output.prompt_logprobs or [], 0, 0
    for end, candidates in enumerate(positions):
        held += len(candidates or ())
        if held >= PIECE_LOGPROBS:
            yield GenerateOutput([], False, prompt_logprobs=positions[begin : end + 1])
            begin, held = end + 1, 0
    yield replace(output, prompt_logprobs=positions[begin:]) if begin else output


class PieceJoiner:
    """Makes outputs of their pieces again, for the messages of one answer."""

    def __init__(self) -> None:
        self._held: PromptLogprobs = []

    def add(self, message: GenerateOutput) -> GenerateOutput | None:
        """The output that ends with this message; None if more of it follows."""
        if not message.completions and not message.finished and message.prompt_logprobs is not None:
            self._held += message.prompt_logprobs or []
            return None
        if not self._held:
            return message
        held, self._held = self._held, []
        return replace(message, prompt_logprobs=held + (message.prompt_logprobs or []))
