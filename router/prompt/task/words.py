"""Words and signs of a request, in some languages. They help `speech`, which works without them, too."""

from enum import IntEnum

import re2

_SIGNS = (
    r"?？؟\x{37e}\x{55e}\x{1367}\x{1945}\x{203d}\x{2047}-\x{2049}\x{2cfa}\x{2cfb}\x{2e2e}\x{a60f}\x{a6f7}\x{fe56}"
    r"\x{11143}\x{1e95f}"
)
MARK = rf"(?:[{_SIGNS}]|\p{{Greek}};)"
"""A question mark of any script. A semicolon is one behind a Greek letter alone."""
MARKS = re2.compile(MARK)

TASK_NAME = re2.compile(
    r"(?i)((user|original|final|main|your|the|current)[_-]?)?(task|question|query|querie|instruction|request|issue(_description)?"
    r"|problem(_statement)?|goal|objective)s?|user[_-](input|message|prompt)|(task|question)[_-](description|text)"
)
"""The names of tags around a task."""
_RULES = (
    r"(?:[\pL\pN]+[_-])*(?:rule|guideline|requirement|constraint|format|reminder|instruction|note|convention)s?"
    r"|[\pL\pN]+(?-i:Rules|Guidelines|Reminder|Instructions)|environment[_-](?:details|context|info)|persona|role"
)
RULES_NAME = re2.compile(rf"(?i)(?:{_RULES})")
"""The names of tags around rules and around a client's own notes."""
RULES_FIRST = re2.compile(
    rf"(?i)\s*(?:<(?:{_RULES})[\s>]|[^\n?<]*(\b(?:AGENTS|CLAUDE|GEMINI|CONVENTIONS|copilot-instructions)\.md"
    r"|\.(?:cursor|cline|windsurf)rules)\b[^\n?]*\n)"
)
"""The beginning of a client's copy of rules: such a tag, or a line with the name of a project's file (the group)."""

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
_BEFORE = r"[\x00-/:-@\[-^`{}~\x7f\xa0\xa1\xab\xbf\x{2013}-\x{201f}\x{3000}-\x{3020}\x{ff08}]{0,8}"
"""A few signs and spaces: what is indented further is code, and behind a bar stands a cell of a table."""
_LABELLED = re2.compile(rf"(?i){_BEFORE}(?:{_LABEL}){_NO_WORD}*[:：\n]")
LABELLED_LINES = re2.compile(rf"(?im)^{_BEFORE}(?:{_LABEL})[ \t]*[:：]")
"""Lines that a label of a task begins, such as the question of an example."""
_BEGINS = re2.compile(
    rf"(?i){_BEFORE}(?:(?:(?:hello|hi|hey|ok|okay|now|then|finally|thanks|thank you){_NO_WORD}+)?"
    rf"(?:(?:{_VERBS})(?:{_NO_WORD}|$)"
    rf"|(?:{_ASKING})(?:(?:[^\pL\pN_.。!！;][^.。!！;]*)?$|[ ](?:{_AUXILIARY})[^\pL\pN_.!;][^.!;]*\.$))"
    rf"|(?:{_UNSPACED}))"
)
_TITLE = re2.compile(rf"(?i){_BEFORE}(?:list|name|label|outline|review|show|estimate)s?[ ]of{_NO_WORD}")
"""Verbs that are nouns of a title before "of": List of characters."""
_EARLIER = re2.compile(
    rf"(?i){_BEFORE}(?:(?:please|kindly|bitte|por favor|请|請){_NO_WORD}*)?(?:{_GOES_ON})"
    rf"(?:{_NO_WORD}+[\pL\pN_]+)?{_NO_WORD}*$"
)
_ENDS = re2.compile(r"(?:か|ください|십시오|세요|吗|呢)[。.!！\s]{0,4}$")
_FIRST, _LAST = 96, 16
"""So many characters are searched for a label, and for the end of a request."""
FEW_LETTERS, FEWER_LETTERS = 20, 12
"""A block with fewer letters that has no question mark is no task: "Answer:", "Thanks!", "Continue.". A letter outside
of ASCII counts twice, because a word has fewer of them in many scripts."""
_OPTION = re2.compile(r"(?m)^[ \t]*[(\[]?[A-Ja-j][.):\]][ \t]+\S[^\n]*\n?")


class Sign(IntEnum):
    """By what a text shows that it is a task, from weak to sure: its place alone, that it says something, the first
    word of a request, a label such as "Question:", a question mark."""

    NONE = 0
    PLACE = 1
    PLAIN = 2
    VERB = 3
    LABEL = 4
    MARK = 5


def sign_of(part: str) -> Sign:
    """A request of few letters is PLAIN, unless it says how to go on: "Continue." belongs to an earlier task."""
    if has_mark(part):
        return Sign.MARK
    letters = sum(letter.isalnum() * (1 if letter.isascii() else 2) for letter in part[:_FIRST])
    is_label, requests = is_labelled(part), _requests(part)
    if letters >= FEW_LETTERS and (is_label or requests):
        return Sign.LABEL if is_label else Sign.VERB
    if not is_label and (not _EARLIER.match(part) if requests else letters >= FEWER_LETTERS):
        return Sign.PLAIN
    return Sign.NONE


def asks(part: str) -> bool:
    """Whether a text has a question mark, a label first, or the words of a request."""
    return has_mark(part) or is_labelled(part) or _requests(part)


def is_labelled(part: str) -> bool:
    """Whether a text begins with a label such as "Question:"."""
    return bool(_LABELLED.match(part[:_FIRST]))


def _requests(part: str) -> bool:
    if _BEGINS.match(part):
        return not _TITLE.match(part)
    return not part[-_LAST:].isascii() and bool(_ENDS.search(part[-_LAST:]))


def has_mark(part: str) -> bool:
    """Whether a text has a question mark."""
    return "?" in part or (not part.isascii() and bool(MARKS.search(part)))


def without_options(text: str) -> str:
    """The text without the lines of the options A, B, C of a question of choice: what they say is no task. A text that
    asks nothing else keeps them: "Do this:", with a list of tasks."""
    rest, count = _OPTION.subn("", text)
    return rest if count > 1 and has_mark(rest) else text
