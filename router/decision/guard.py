"""The guard: under `enabled: auto`, a prompt whose task needs its whole text runs dense.

To quote, translate, rewrite, summarise, convert, correct, compare, continue, count, list or sort needs most of a text,
or all of it to the letter. A classifier (`whole_text`) knows such tasks by their words, in many languages.

An explicit wish is obeyed: the guard does nothing for a request with `enabled: always`, or with a keep rate or a
coverage of its own, be it for one role, range or content.
"""

import re2

from kv_transfer.options import AUTO
from router.decision.whole_text import whole_text_score
from router.options.request import PrefillOptions
from router.prompt.task.options import without_options
from router.prompt.task.words import asks

EXPLICIT = frozenset({"keep_rate", "coverage", "max_keep", "keep_by_role"})
"""Options that say how much is kept. A request that gives one is obeyed. A floor (`min_keep`) lets more be kept."""

_SHORT_FORMS = re2.compile(
    r"(?i)\btl;?dr\b"
    r"|(?:^|[.!?\n][ \t]*)(?:summary|abstract|zusammenfassung|résumé|resumen|resumo|riassunto|samenvatting)[\s:]*$"
    r"|(?:摘要|总结|總結|要約|요약)[\s:\x{ff1a}]*$"
)
"""A word in place of a sentence, of which the classifier has too few n-grams."""


def acts(options: PrefillOptions, *, has_keep_fields: bool) -> bool:
    """Whether the guard may send a request dense. has_keep_fields: a content says how much of it is kept."""
    return options.enabled == AUTO and not (has_keep_fields or says_how_much(options))


def needs_whole_text(task: str) -> bool:
    """Whether a task needs the whole text. The options of a question of choice do not count.

    Besides the task as it is, the classifier reads requests before the colon of a line, which has the text behind it.
    """
    task = without_options(task)
    clauses = (line.partition(":")[0] for line in task.replace("\uff1a", ":").split("\n"))
    requests = "\n".join(clause for clause in clauses if asks(clause, 0, len(clause)))
    return bool(_SHORT_FORMS.search(task)) or max(whole_text_score(task), whole_text_score(requests)) > 0


def says_how_much(options: PrefillOptions) -> bool:
    """Whether the request itself says how much is kept. `keep_rate: auto` leaves it to Skim."""
    given = options.model_fields_set & EXPLICIT
    return bool(given - {"keep_rate"} if options.keep_rate == AUTO else given)
