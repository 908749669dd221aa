"""How long an answer takes after its first token, by the latest answers of this router. Pure."""

DECAY = 0.95
"""Weight of an answer after the next one: about the latest twenty count."""


class AnswerTime:
    """Running means: the time of a token, and the tokens of an answer."""

    def __init__(self) -> None:
        self._answers = self._tokens = self._ms = 0.0

    def learn(self, tokens: int, ms: float) -> None:
        """A complete answer: `tokens` tokens after the first one took `ms` milliseconds."""
        self._answers = DECAY * self._answers + 1
        self._tokens, self._ms = DECAY * self._tokens + tokens, DECAY * self._ms + ms

    def estimate(self, most_tokens: int) -> float:
        """Milliseconds of an answer that may have `most_tokens` tokens; 0 before the first answer."""
        if not self._tokens:
            return 0.0
        return self._ms / self._tokens * min(float(most_tokens), self._tokens / self._answers)
