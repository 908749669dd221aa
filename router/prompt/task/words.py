"""Words and signs of a request, in some languages. They help `speech`, which works without them, too."""

import re

ASKS = re.compile(r"[?？؟\u037e]")
"""Question marks of all scripts."""

TASK_NAME = re.compile(
    r"((user|original|final|main|your|the|current)[_-]?)?(task|question|query|querie|instruction|request|issue(_description)?"
    r"|problem(_statement)?|goal|objective)s?|user[_-](input|message|prompt)|(task|question)[_-](description|text)",
    re.IGNORECASE,
)
"""The names of tags around a task."""
RULES_NAME = re.compile(
    r"((system|output|response|answer|user|important|custom)[_-]?)?(rule|guideline|requirement|constraint|format|reminder"
    r"|instruction|note)s?|environment[_-]details|persona|role",
    re.IGNORECASE,
)
"""The names of tags around rules and around a client's own notes."""

HEADING = re.compile(r"(#{1,6}[ \t]+)?[^\n]{1,80}[:：]|#{1,6}[ \t]+[^\n]{1,120}")
"""A block that only announces what follows it."""

PERSONA = re.compile(r"(?:\W{0,8}(?:you are|you're|act as)\b[^.\n]{0,400}\.?){1,4}", re.IGNORECASE)
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
    "|extract|compare|classify|label|fix|add|change|implement|refactor|remove|update|create|generate|show|return|quote"
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
_UNSPACED = "请|請|根据|回答|找出|告诉|告訴|翻译|总结|把|什么|谁|哪|为什么|教えて|다음"
_ASKING = (
    "what|which|who|whom|whose|where|when|why|how|wer|wie|wo|wann|warum|welche[rsnm]?|qué|quién|cuál(?:es)?|dónde|cuándo"
    "|cómo|quel(?:le)?s?|comment|pourquoi|combien|qual|quem|onde|quando|кто|что|где|когда|почему"
)
"""Prose begins with these, too."""
_AUXILIARY = "is|are|was|were|do|does|did|has|have|had|can|could|will|would|should"
"""Follows them in a question that ends with a full stop."""
_LABELLED = re.compile(rf"\W{{0,8}}(?:{_LABEL})\W{{0,4}}[:：\n]", re.IGNORECASE)
_BEGINS = re.compile(
    r"\W{0,8}(?:(?:(?:hello|hi|hey|ok|okay|now|then|finally|thanks|thank you)\W{1,3})?"
    rf"(?:(?:{_VERBS})\b|(?:{_ASKING})\b(?:[^.。!！;]{{0,400}}|[ ](?:{_AUXILIARY})\b[^.!;]{{1,400}}\.)\Z)"
    rf"|(?:{_UNSPACED}))",
    re.IGNORECASE,
)
_ENDS = re.compile(r"(?:か|ください|십시오|세요|吗|呢)[。.!！\s]{0,4}$")
_TAIL = 16


def asks_surely(text: str, start: int, end: int) -> bool:
    """Whether a block has a question mark, or a label first. A text of prose has few of these."""
    return bool(ASKS.search(text, start, end)) or is_labelled(text, start, end)


def is_labelled(text: str, start: int, end: int) -> bool:
    """Whether a block begins with a label such as "Question:"."""
    return bool(_LABELLED.match(text, start, end))


def asks(text: str, start: int, end: int) -> bool:
    """Whether a block of text looks like a task: `asks_surely`, or it begins with a word of a request."""
    if asks_surely(text, start, end) or _BEGINS.match(text, start, end):
        return True
    return bool(_ENDS.search(text[max(start, end - _TAIL) : end]))
