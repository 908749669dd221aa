"""Labels that have a line of their own, or the beginning of one: headings, titles, [n], files of a diff, times."""

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from router.prompt.labels.marks import Marks, TextLines
from router.prompt.text.codes import Codes, among

SHORT_TITLE = 60
"""Characters. A line without a stop between a blank line and a longer one is a title up to this length."""
TITLE = 100
REST = 80
"""Characters. After a label in brackets, so short a rest of the line without a stop belongs to the label."""

LONGEST_STAMPED = 200
"""Characters. A longer line with a time is no label of the lines after it; its time is."""

_BARS = "=*~#+<>-_"
_HEADING = re.compile(r"(#{1,6})[ \t]+\S")
_COMMENTED = re.compile(
    r"#|@|[ \t]+\S|(?:import|from|def|class|if|for|while|return|export|set|function|const|let|var|local)\b"
    r"|[a-z_][\w.-]*(?:[ \t]*[:=]|\()|[A-Z_]{2,}="
)
"""After such a line, "# ..." is a comment of code or of a config."""
_BARRED = re.compile(r"[=*~#+<>_-]{2,}[ \t]*[^\s=*~#+<>_-].{0,100}?[ \t]*[=*~#+<>_-]{2,}$")
_BRACKET = re.compile(
    r"(?:\[([^\[\]\n]{1,60})\]|\u3010([^\u3010\u3011\n]{1,60})\u3011)(?:(?![(:])|:(?![ \t]*(?:\w+:|[/<#.])))"
)
_PARENTHESES = re.compile(r"\([^()\n]{3,80}\)$")
_COMMENT = re.compile(r"<!--[^\n]{1,80}-->$")
_PREFIXED = re.compile(r"(={2,6}|\*{2,6})[ \t]+[^\s=*]")
_SEVERITY = re.compile(r"(?:trace|debug|info|notice|warn|warning|error|err|fatal|critical)$", re.IGNORECASE)
_DATE = r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d{1,2}/\d{1,2}/\d{2,4})"
_TIME = r"\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,6})?(?:Z|[ ]?[APap]\.?[Mm]\.?)?"
_STAMP = re.compile(rf"[\[(<]?(?:{_DATE}(?:[T ,]{{1,2}}{_TIME})?|{_TIME})(?:[ ]*-->[ ]*[\d:.,]+)?[\])>]?(?=[\s:|-]|$)")
_AFTER_STAMP = re.compile(r"[ \t:|-]*[^\W\d_][^\n:]{0,40}:(?=\s)")
_ENDS_WITH_TIME = re.compile(rf"[^\W\d_][\w .'\u2019-]{{0,40}}?[ \t]+[\[(]?{_TIME}[\])]?$")
_ITEM = re.compile(r"(?:\(?\d{1,3}[.)]|\([a-z]{1,3}\))(?=\s)")
_NUMBERED = re.compile(r"\u00a7+[ ]?\d|(\d{1,3}(?:\.\d{1,3})+)\.?\s+[^\W\d_]|\d{1,3}\s+[^\W\d_]")
_WORDS = (
    "chapter|section|part|article|appendix|passage|document|doc|page|act|scene|book|volume|exhibit|schedule|annex"
    "|source|file|example|case|item|entry|record|excerpt|snippet|chunk|result|note|letter|session|day|lesson|unit|topic"
    "|kapitel|abschnitt|teil|artikel|chapitre|partie|cap\u00edtulo|secci\u00f3n|parte|capitolo|hoofdstuk"
)
_TITLED = re.compile(rf"({_WORDS})[ \t]*(?:#|no\.?[ ]?)?(?:\d[\w.]*|[ivxlc]+|[a-z])\b", re.IGNORECASE)
_WIDE_TITLED = re.compile(r"\u7b2c.{1,6}[\u7ae0\u7bc0\u8282\u6761\u689d\u90e8\u7f16\u56de]")
_FILE = re.compile(r"(?:diff --git |Index: |commit [0-9a-f]{7,40}\b)")
_PATH = re.compile(
    r"(?=.{2,160}$)(?:[\w.~-]*[/\\])*[\w.~-]+(?:[/\\]|\.[A-Za-z]\w{0,7}|:)?$|(?:[\w.~-]*[/\\])+[\w.~-]+$"
)
_STOPS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", ",", ";")


def add_lines(marks: Marks, text: str, codes: Codes, lines: TextLines) -> None:
    """Add the marks of these forms. text, codes, lines: of the same text."""
    if not lines.raw.size:
        return
    first, last = codes[lines.first], codes[lines.end - 1]
    second = codes[(lines.first + 1).clip(max=codes.size - 1)]
    size, whole = lines.end - lines.first, lines.indents == 0
    digit = _numbers(codes, lines)
    other_digit = (first >= ord("0")) & (first <= ord("9"))
    bar = among(first, _BARS) & ((second == first) | among(last, _BARS)) & (size > 1)
    plain = ~(other_digit | among(first, _BARS + "[(<@{}\u3010\"'|"))
    starts_file = among(first, "dIc") & among(second, "ino")
    forms: list[tuple[npt.NDArray[np.bool_], Callable[[Marks, str, TextLines, int], None]]] = [
        ((first == ord("#")) & whole, _heading),
        (bar & whole, _bar),
        (among(first, "[\u3010"), _bracket),
        ((first == ord("@")) & (second == ord("@")), _hunk),
        ((first == ord("<")) & (second == ord("!")), _comment),
        (digit, _number),
        (starts_file & whole, _file),
        (plain & lines.fresh & (size <= TITLE) & (size > 1), _title),
    ]
    for candidates, form in forms:
        for number in np.flatnonzero(candidates).tolist():
            form(marks, text, lines, number)


def _numbers(codes: Codes, lines: TextLines) -> npt.NDArray[np.bool_]:
    """The lines that may begin with the number of an item or with a time, bool [N]."""
    last = codes.size - 1
    found = among(codes[lines.first], "(\u00a7")
    is_digit = among(codes[lines.first], "0123456789")
    for place in range(1, 5):
        following = codes[(lines.first + place).clip(max=last)]
        found |= is_digit & among(following, ".):/- \t")
        is_digit &= among(following, "0123456789")
    return found


def _whole(marks: Marks, lines: TextLines, number: int, group: str, level: int = 0, before: int = 0) -> None:
    """The whole line is a label, with so many lines before it."""
    raw, _, _, after = lines.places
    marks.add(raw[number - before], after[number], group, level)


def _begin(marks: Marks, lines: TextLines, number: int, end: int, group: str) -> None:
    """The line's first `end` characters are a label."""
    raw, first, _, _ = lines.places
    marks.add(raw[number], first[number] + end, group, inline=True)


def _next_line(text: str, lines: TextLines, number: int) -> str:
    """The next line with its white space, if none is blank between; else ""."""
    if lines.apart[number]:
        return ""
    start = lines.places[0][number + 1]
    return text[start : start + 40]


def _heading(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    found = _HEADING.match(lines.text(text, number))
    if found is not None and not _COMMENTED.match(_next_line(text, lines, number)):
        _whole(marks, lines, number, "heading", len(found[1]))


def _bar(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    before = lines.text(text, number - 1) if number else ""
    if line.startswith("+++ ") and before.startswith("--- "):
        _whole(marks, lines, number, "file", before=int(line[4:] == "/dev/null"))
    elif line[0] in "=-" and not line.strip(line[0]) and len(line) > 2:
        is_title = bool(before) and not lines.fresh[number] and lines.fresh[number - 1] and len(before) <= TITLE
        if is_title and not before.endswith(_STOPS) and "|" not in before:  # else a paragraph or a table ends here
            _whole(marks, lines, number, "heading", 1 if line[0] == "=" else 2, before=1)
    elif line[:2] in ("**", "__") and line.rstrip(":").endswith(line[:2]) and 4 < len(line) <= TITLE:
        if line.count(line[:2]) == 2:
            _whole(marks, lines, number, "bold")
    elif _BARRED.match(line):
        _whole(marks, lines, number, "bar")
    elif len(line) <= TITLE and not line.endswith(_STOPS) and (found := _PREFIXED.match(line)):
        _whole(marks, lines, number, "heading", len(found[1]))


def _hunk(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    if lines.text(text, number).startswith("@@ "):
        _whole(marks, lines, number, "hunk")


def _comment(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    if _COMMENT.match(lines.text(text, number)):
        _whole(marks, lines, number, "comment")


def _file(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    if _FILE.match(lines.text(text, number)):
        _whole(marks, lines, number, "file")


def _bracket(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if _stamp(marks, line, text, lines, number) or (found := _BRACKET.match(line)) is None:
        return
    name = (found[1] or found[2]).strip()
    if not _SEVERITY.match(name) and any(map(str.isalnum, name)):
        _begun(marks, line, lines, number, found.end(), "bracket")


def _begun(marks: Marks, line: str, lines: TextLines, number: int, end: int, group: str) -> None:
    """A label up to `end` of a line, or the whole line if what follows is a title."""
    rest = len(line) - end
    if rest <= REST and not (rest and line.endswith(_STOPS)):
        _whole(marks, lines, number, group)
    else:
        _begin(marks, lines, number, end, group)


def _stamp(marks: Marks, line: str, text: str, lines: TextLines, number: int) -> bool:
    """Whether the line begins with a time, which is added, with the speaker after it. Before lines without a time, such
    as a trace, the whole line is the label."""
    if (found := _STAMP.match(line)) is None:
        return False
    end = found.end()
    if end >= len(line) - 1:
        _whole(marks, lines, number, "time")
    elif (speaker := _AFTER_STAMP.match(line, end)) is not None:
        _begin(marks, lines, number, speaker.end(), "stamp")
    elif len(line) < LONGEST_STAMPED and _is_followed(text, lines, number):
        _whole(marks, lines, number, "stamp")
    else:
        _begin(marks, lines, number, end, "stamp")
    return True


def _is_followed(text: str, lines: TextLines, number: int) -> bool:
    """Whether a line without a time follows."""
    return number + 1 < len(lines.places[0]) and not _STAMP.match(lines.text(text, number + 1, 40))


def _number(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if _stamp(marks, line, text, lines, number):
        return
    if (item := _ITEM.match(line)) is not None:
        if lines.fresh[number] and lines.apart[number]:
            _begun(marks, line, lines, number, item.end(), "item")
        else:
            _begin(marks, lines, number, item.end(), "item" if lines.fresh[number] else "list")
        return
    if lines.fresh[number] and not lines.apart[number] and _PARENTHESES.match(line):
        _whole(marks, lines, number, "bracket")
    found = _NUMBERED.match(line)
    if found and len(line) <= TITLE and not line.endswith(_STOPS) and (found[1] or lines.fresh[number]):
        _whole(marks, lines, number, "numbered", found[1].count(".") if found[1] else 0)


def _title(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if (found := _TITLED.match(line)) and (len(line) <= len(found[0]) + 1 or not line.endswith(_STOPS)):
        if ":" not in line:
            _whole(marks, lines, number, f"title {found[1].lower()}")
    elif _WIDE_TITLED.match(line):
        _whole(marks, lines, number, "title")
    elif group := _group_of_title(line, lines, number):
        _whole(marks, lines, number, group)


def _group_of_title(line: str, lines: TextLines, number: int) -> str:
    """The group of a line after a blank one that is a title by its form; "" for others."""
    path = _PATH.match(line) and ("/" in line or "." in line or "\\" in line or line.endswith(":"))
    if line.endswith(_STOPS) or '"' in line or (line[0].islower() and not path):
        return ""
    if line.endswith(":"):
        return "path" if path else "colon"
    if _ENDS_WITH_TIME.match(line):
        return "speaker"
    if number + 1 >= len(lines.places[0]):
        return ""
    if path:
        return "path"
    if line.isupper() and len(line) > 3:
        return "capitals"
    following = int(lines.end[number + 1] - lines.first[number + 1])
    short = len(line) <= SHORT_TITLE and not line[0].islower() and following > max(SHORT_TITLE, 2 * len(line))
    return "short" if short else ""
