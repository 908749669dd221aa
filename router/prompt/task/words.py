"""Words and signs of a request, in some languages. They help `speech`, which works without them, too."""

from collections.abc import Iterator

import re2

from router.prompt.markers import CharSpan

_SIGNS = (
    r"?？؟\x{37e}\x{55e}\x{1367}\x{1945}\x{203d}\x{2047}-\x{2049}\x{2cfa}\x{2cfb}\x{2e2e}\x{a60f}\x{a6f7}\x{fe56}"
    r"\x{11143}\x{1e95f}"
)
MARK = rf"(?:[{_SIGNS}]|\p{{Greek}};)"
"""A question mark of any script. A semicolon is one behind a Greek letter alone."""
_MARKS = re2.compile(MARK)

TASK_NAME = re2.compile(
    r"(?i)((user|original|final|main|your|the|current)[_-]?)?(task|question|query|querie|instruction|request|issue(_description)?"
    r"|problem(_statement)?|goal|objective)s?|user[_-](input|message|prompt)|(task|question)[_-](description|text)"
)
"""The names of tags around a task."""
RULES_NAME = re2.compile(
    r"(?i)((system|output|response|answer|user|important|custom)[_-]?)?(rule|guideline|requirement|constraint|format|reminder"
    r"|instruction|note)s?|environment[_-]details|persona|role"
)
"""The names of tags around rules and around a client's own notes."""

PERSONA = re2.compile(r"(?i)(?:[^\pL\pN_]*(?:you are|you're|act as)(?:[^\pL\pN_.\n][^.\n]*)?(?:\.|$))+")
"""A text of the system that only says who the assistant is."""

_LABEL = (
    "(?:(?:user|your|my|the|this|current|new|final|follow.?up)[ ])?"
    "(?:question|query|task|job|instructions?|request|prompt|message|input|goal|objective|rules?|guidelines?|q)"
    "|frage|aufgabe|anweisung(?:en)?|regeln|pregunta|tarea|instrucciones|reglas|consignes?|tâche|règles|pergunta"
    "|tarefa|regras|domanda|compito|istruzioni|regole|vraag|taak|opdracht|pytanie|zadanie|soru|görev"
    "|вопрос|задача|задание|правила"
    "|问题|問題|任务|任務|指令|質問|指示|要求|规则|질문|과제|지시"
    "|سؤال|مهمة|السؤال|प्रश्न"
)
_VERBS = (
    "please|kindly|tell|find|give|list|name|explain|describe|summari[sz]e|translate|rewrite|rephrase|write|answer|identify"
    "|extract|tl;?dr|sum up|correct|shorten|simplify|paraphrase|condense|outline|redact|anonymi[sz]e|improve"
    "|evaluate|locate"
    "|compare|classify|label|fix|add|change|implement|refactor|remove|update|create|generate|show|return|quote"
    "|count|decide|check|review|determine|convert|complete|continue|proofread|analy[sz]e|use|using|based on|given the"
    "|look up|read|look|say|work out|solve|estimate|calculate|compute|provide|act as"
    "|i want|i need|i(?:'d| would) like|you are|you must|you should|do not|don't|can you|could you|would you"
    "|bitte|nenne|finde|gib|erkläre|fasse|übersetze|schreibe?|antworte|beantworte"
    "|por favor|dime|encuentra|resume|explica|traduce|responde"
    "|veuillez|donne[rz]?|trouve[rz]?|explique[rz]?|résume[rz]?|tradui[ts]|réponds|répondez"
    "|diga|encontre|resuma|responda|dimmi|trova|spiega|riassumi|traduci|rispondi"
    "|geef|vind|beantwoord|vertaal|podaj|znajdź|wyjaśnij|odpowiedz|przetłumacz|lütfen|bul|açıkla|özetle"
    "|найди|скажи|объясни|ответь|назови|переведи"
)
_GOES_ON = (
    "answer|respond|reply|continue|go on|proceed|explain|tell me|show|use|read|look|say"
    "|antworte|beantworte|responde|explica|réponds|répondez|rispondi|beantwoord|odpowiedz|ответь"
    "|回答|继续|繼續|続けて|계속|다음"
)
"""Short requests that begin so belong to an earlier task."""
_UNSPACED = "请|請|根据|回答|找出|告诉|告訴|翻译|总结|把|什么|谁|哪|为什么|教えて|다음"
_ASKING = (
    "what|which|who|whom|whose|where|when|why|how|wer|wie|wo|wann|warum|welche[rsnm]?|qué|quién|cuál(?:es)?|dónde|cuándo"
    "|cómo|quel(?:le)?s?|comment|pourquoi|combien|qual|quem|onde|quando|кто|что|где|когда|почему"
)
"""Prose begins with these, too."""
_AUXILIARY = "is|are|was|were|do|does|did|has|have|had|can|could|will|would|should"
"""Follows them in a question that ends with a full stop."""
_NO_WORD = r"[^\pL\pN_]"
_BEFORE = r"[\x00-/:-@\[-^`{-\x7f\xa0\xa1\xab\xbf\x{2013}-\x{201f}\x{3000}-\x{3020}\x{ff08}]{0,8}"
"""A few signs and spaces: what is indented further is code."""
_LABELLED = re2.compile(rf"(?i){_BEFORE}(?:{_LABEL}){_NO_WORD}*[:：\n]")
_BEGINS = re2.compile(
    rf"(?i){_BEFORE}(?:(?:(?:hello|hi|hey|ok|okay|now|then|finally|thanks|thank you){_NO_WORD}+)?"
    rf"(?:(?:{_VERBS})(?:{_NO_WORD}|$)"
    rf"|(?:{_ASKING})(?:(?:[^\pL\pN_.。!！;][^.。!！;]*)?$|[ ](?:{_AUXILIARY})[^\pL\pN_.!;][^.!;]*\.$))"
    rf"|(?:{_UNSPACED}))"
)
_EARLIER = re2.compile(
    rf"(?i){_BEFORE}(?:(?:please|kindly|bitte|por favor|请|請){_NO_WORD}*)?(?:{_GOES_ON})"
    rf"(?:{_NO_WORD}+[\pL\pN_]+)?{_NO_WORD}*$"
)
_ENDS = re2.compile(r"(?:か|ください|십시오|세요|吗|呢)[。.!！\s]{0,4}$")
_FIRST, _LAST = 96, 16
"""So many characters are searched for a label, and for the end of a request."""
FEW_LETTERS = 20
"""A block with fewer letters that has no question mark is no task: "Answer:", "Thanks!", "Continue.". A letter outside
of ASCII counts twice, because a word has fewer of them in many scripts."""
_OPTION = re2.compile(r"(?m)^[ \t]*[(\[]?([A-Ja-j])[.):\]][ \t]+\S[^\n]*\n?")


def has_mark(text: str, start: int, end: int) -> bool:
    """Whether a range has a question mark."""
    part = text[start:end]
    return "?" in part or (not part.isascii() and bool(_MARKS.search(part)))


def marks_of(text: str, start: int, end: int) -> Iterator[CharSpan]:
    """The question marks of a range."""
    return ((start + mark.start(), start + mark.end()) for mark in _MARKS.finditer(text[start:end]))


def asks_surely(text: str, start: int, end: int) -> bool:
    """Whether a block has a question mark, or a label first. A text of prose has few of these."""
    return has_mark(text, start, end) or is_labelled(text, start, end)


def is_labelled(text: str, start: int, end: int) -> bool:
    """Whether a block begins with a label such as "Question:"."""
    return bool(_LABELLED.match(text[start : min(end, start + _FIRST)]))


def belongs_to_earlier(text: str, start: int, end: int) -> bool:
    """Whether a request of few letters says how to go on, such as "Continue." or "Answer:"."""
    return is_labelled(text, start, end) or bool(_EARLIER.match(text[start:end]))


def asks(text: str, start: int, end: int) -> bool:
    """Whether a block of text looks like a task: `asks_surely`, or it begins with a word of a request."""
    if asks_surely(text, start, end) or _BEGINS.match(text[start:end]):
        return True
    tail = text[max(start, end - _LAST) : end]
    return not tail.isascii() and bool(_ENDS.search(tail))


def says_something(text: str, start: int, end: int) -> bool:
    """Whether a text has letters for a task."""
    left = FEW_LETTERS
    for letter in text[start:end]:
        left -= letter.isalnum() * (1 if letter.isascii() else 2)
        if left <= 0:
            return True
    return False


def can_be_task(text: str, start: int, end: int) -> bool:
    """Whether a text that is no task by itself can be one where there is no other."""
    return says_something(text, start, end) or (asks(text, start, end) and not belongs_to_earlier(text, start, end))


def options_of(text: str, start: int = 0, end: int | None = None) -> list[CharSpan]:
    """The lines with the options A, B, C of a question of choice, in order; none if there are fewer than two, or if the
    letters do not follow each other."""
    found: list[CharSpan] = []
    for match in _OPTION.finditer(text[start:end]):
        if ord(match[1].lower()) - ord("a") == len(found):
            found.append((start + match.start(), start + match.end()))
    return found if len(found) > 1 else []


def without_options(text: str) -> str:
    """The text without the lines of its options: what they say is no task. A text that asks nothing else keeps them:
    "Do this:", with a list of tasks."""
    parts, place = [], 0
    for start, end in options_of(text):
        parts.append(text[place:start])
        place = end
    rest = "".join([*parts, text[place:]])
    return rest if has_mark(rest, 0, len(rest)) else text
