"""The guard: under `enabled: auto`, a prompt whose task needs its whole text runs dense.

To quote, translate, rewrite, summarise, convert, correct, compare, continue, count, list or sort needs most of a text,
or all of it to the letter. A classifier (`whole_text`) knows such tasks by their words, in many languages.

An explicit wish is obeyed: the guard does nothing for a request with `enabled: always`, or with a keep rate or a
coverage of its own, be it for one role, range or content.

Catch-up measures how often the dense model would have given the same answer as a selection did (`Agreements`). Where
the answers to a client's prompts of one shape differ too often, `auto` runs that kind dense.
"""

from collections import Counter, defaultdict
from functools import partial

import re2

from kv_transfer.options import AUTO
from router.decision.conversations import Client
from router.decision.decaying_mean import DecayingMean
from router.decision.whole_text import whole_text_score
from router.options.request import PrefillOptions
from router.prompt.task.words import asks, without_options

EXPLICIT = frozenset({"keep_rate", "coverage", "max_keep", "keep_by_role"})
"""Options that say how much is kept. A request that gives one is obeyed. A floor (`min_keep`) lets more be kept."""

AGREES = 0.9
"""An answer agrees if the dense model would have chosen this share of its tokens: a starting value. Bfloat16 alone
changes a few tokens that have a close second."""
LIMIT = 0.8
"""The least share of the answers of a kind that must agree."""
ENOUGH = 8.0
"""Weight of a kind's answers before their share counts: that of the latest ten."""
DECAY = 0.95
"""Weight of an answer after the next one: about the latest twenty count."""
TRIAL = 16
"""Of a kind that runs dense, one prompt in so many is skimmed, so that its share is measured again."""


_SHORT_FORMS = re2.compile(
    r"(?i)\btl;?dr\b"
    r"|(?:^|[.!?\n][ \t]*)(?:summary|abstract|zusammenfassung|résumé|resumen|resumo|riassunto|samenvatting)[\s:]*$"
    r"|(?:摘要|总结|總結|要約|요약)[\s:\x{ff1a}]*$"
)
"""A word in place of a sentence, of which the classifier has too few n-grams."""
_LABEL = re2.compile(r"(?m)(^|[.!?])[ \t]*[\pL\pM]+:[ \t]+")
"""A word before a colon, at the beginning of a sentence."""


def acts(options: PrefillOptions, *, has_keep_fields: bool) -> bool:
    """Whether the guard may send a request dense. has_keep_fields: a content says how much of it is kept."""
    return options.enabled == AUTO and not (has_keep_fields or says_how_much(options))


def needs_whole_text(task: str) -> bool:
    """Whether a task needs the whole text. The options of a question of choice do not count.

    The classifier reads it without labels such as `Question:`, and besides the requests before the colon of a line,
    which has the text behind it.
    """
    task = without_options(task).replace("\uff1a", ":")
    clauses = (line.partition(":")[0] for line in task.split("\n"))
    requests = "\n".join(clause for clause in clauses if asks(clause, 0, len(clause)))
    return bool(_SHORT_FORMS.search(task)) or max(map(whole_text_score, (_LABEL.sub(r"\1 ", task), requests))) > 0


def says_how_much(options: PrefillOptions) -> bool:
    """Whether the request itself says how much is kept. `keep_rate: auto` leaves it to Skim."""
    given = options.model_fields_set & EXPLICIT
    return bool(given - {"keep_rate"} if options.keep_rate == AUTO else given)


class Agreements:
    """What one router has measured."""

    def __init__(self) -> None:
        self._shares: defaultdict[Client, DecayingMean] = defaultdict(partial(DecayingMean, DECAY))
        self._distrusted = Counter[Client]()

    def measured(self, client: Client, *, agrees: bool) -> None:
        """Count an answer to a prompt of this client and shape."""
        self._shares[client].add(agrees)

    def trusts(self, client: Client) -> bool:
        """Whether a prompt of this client and shape may be skimmed."""
        share = self._shares.get(client)
        if share is None or share.weight < ENOUGH or share.value >= LIMIT:
            return True
        self._distrusted[client] += 1
        return self._distrusted[client] % TRIAL == 0
