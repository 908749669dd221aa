"""Real English text with one fact in it, and a question for which a model needs that fact."""

from dataclasses import dataclass
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()


@dataclass(frozen=True)
class RealDocument:
    """About 1,250 tokens of a licence; `fact` stands in it after `before` characters."""

    fact: str
    question: str
    answer: str
    before: int

    @property
    def messages(self) -> list[dict[str, str]]:
        text = f"{TEXT[: self.before]}\n\n{self.fact}\n\n{TEXT[self.before : 6000]}\n\n{self.question}"
        return [{"role": "user", "content": text}]


CODE = RealDocument(
    "The access code of the archive is 7319.", "What is the access code of the archive?", "7319", before=1200
)
KEEPER = RealDocument(
    "The keeper of the lighthouse is called Martha Olsen.",
    "What is the name of the keeper of the lighthouse?",
    "Martha Olsen",
    before=4000,
)
