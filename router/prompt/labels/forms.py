"""Labels that have a line of their own, or the beginning of one: headings, titles, [n], files of a diff, times."""

from collections.abc import Callable
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt
import re2

from router.prompt.labels.marks import Marks, TextLines
from router.prompt.text.codes import DIGIT, LETTER, SPACE, WORD, Codes, among

SHORT_TITLE = 60
"""Characters. A line without a stop between a blank line and a longer one is a title up to this length."""
TITLE = 100
REST = 80
"""Characters. After a label in brackets, so short a rest of the line without a stop belongs to the label."""

MOST_COMMENT, MOST_BRACKETED = 80, 60
"""Characters between the signs of a comment or parentheses, and between brackets, of a label."""
LONGEST_STAMPED = 200
"""Characters. A longer line with a time is no label of the lines after it; its time is."""

_BARS = "=*~#+<>-_"
MOST_BARRED = 101
"""Characters between two bars of a line."""
_COMMENTED = re2.compile(
    rf"[#@]|[ \t]+[^{SPACE}]|(?:import|from|def|class|if|for|while|return|export|set|function|const|let|var|local)"
    rf"(?:[^{WORD}]|$)|[a-z_][{WORD}.-]*(?:[ \t]*[:=]|\()|[A-Z_]{{2,}}="
)
"""Before such a line, "# ..." is a comment of code or of a config."""
_COMMAND = frozenset(f"{ascii_lowercase}$./~")
"""Before a line that begins so, "# ..." may be a comment, or the title of text without capitals. It names its block."""
_SEVERITIES = frozenset(str.split("trace debug info notice warn warning error err fatal critical"))
_DATE = rf"(?:{DIGIT}{{4}}[-/.]{DIGIT}{{2}}[-/.]{DIGIT}{{2}}|{DIGIT}{{1,2}}/{DIGIT}{{1,2}}/{DIGIT}{{2,4}})"
_TIME = rf"{DIGIT}{{1,2}}:{DIGIT}{{2}}(?::{DIGIT}{{2}})?(?:[.,]{DIGIT}{{1,6}})?(?:Z|[ ]?[APap]\.?[Mm]\.?)?"
_STAMPED = (
    rf"([\[(<]?(?:{_DATE}(?:[T ,]{{1,2}}{_TIME})?|{_TIME})(?:[ ]*-->[ ]*[{DIGIT}:.,]+)?[\])>]?)(?:[{SPACE}:|-]|$)"
)
_STAMP = re2.compile(_STAMPED)
_ENDS_WITH_TIME = re2.compile(rf"([{LETTER}][{WORD} .'\x{{2019}}-]*?)[ \t]+[\[(]?{_TIME}[\])]?$")
MOST_NAME = 41
"""Characters of a speaker's name beside a time."""
_NUMBERED = re2.compile(
    rf"{_STAMPED}|(\(?{DIGIT}{{1,3}}[.)]|\([a-z]{{1,3}}\))[{SPACE}]|\x{{a7}}+[ ]?{DIGIT}"
    rf"|(?:({DIGIT}{{1,3}}(?:\.{DIGIT}{{1,3}})+)\.?|{DIGIT}{{1,3}})[{SPACE}]+[{LETTER}]"
)
"""A time, the number of an item, or that of a section."""
_WORDS = (
    "chapter|section|part|article|appendix|passage|document|doc|page|act|scene|book|volume|exhibit|schedule|annex"
    "|source|file|example|case|item|entry|record|excerpt|snippet|chunk|result|note|letter|session|day|lesson|unit|topic"
    "|kapitel|abschnitt|teil|artikel|chapitre|partie|cap\u00edtulo|secci\u00f3n|parte|capitolo|hoofdstuk"
)
_TITLED = re2.compile(
    rf"(?i)(({_WORDS})[ \t]*(?:#|no\.?[ ]?)?(?:{DIGIT}(?:[{WORD}.]*[{WORD}])?|[ivxlc]+|[a-z]))(?:[^{WORD}]|$)"
)
_WIDE_TITLES = "\u7ae0\u7bc0\u8282\u6761\u689d\u90e8\u7f16\u56de"
_COMMIT = re2.compile(rf"commit [0-9a-f]{{7,40}}(?:[^{WORD}]|$)")
_PATH_SIGNS = dict.fromkeys(map(ord, "._~-/\\"), "a")
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
    line, following = lines.text(text, number), _next_line(text, lines, number)
    level = _level(line)
    goes_on = not lines.fresh[number] and lines.text(text, number - 1, level + 1) == line[: level + 1]
    if not level or goes_on or _COMMENTED.match(following):
        return
    if level == 1 and (following[:1] in _COMMAND):
        _, _, _, after = lines.places
        end = after[lines.last[number]]
        _whole(marks, lines, number, "remark")
        marks.add(end, end, "remark", closes=True)
    else:
        _whole(marks, lines, number, "heading", level)


def _level(line: str) -> int:
    """The number of signs before a title, such as "## Title"; 0 if there are none or more than six."""
    title = line.lstrip(line[0])
    level = len(line) - len(title)
    return level if level <= 6 and title[:1] in (" ", "\t") and not title.lstrip(" \t")[0].isspace() else 0


def _is_barred(line: str) -> bool:
    """Whether a title stands between bars, such as "=== title ==="."""
    after = line.lstrip(_BARS)
    before = after.rstrip(_BARS)
    title = before.strip(" \t")
    barred = len(line) - len(after) > 1 < len(after) - len(before)
    return barred and 0 < len(title) <= MOST_BARRED and not (title[0] in _BARS or title[0].isspace())


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
    elif _is_barred(line):
        _whole(marks, lines, number, "bar")
    elif len(line) > TITLE or line[0] not in "=*" or line.endswith(_STOPS):
        return
    elif (level := _level(line)) > 1 and line[level:].lstrip(" \t")[0] not in "=*":
        _whole(marks, lines, number, "heading", level)


def _hunk(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    if lines.text(text, number).startswith("@@ "):
        _whole(marks, lines, number, "hunk")


def _comment(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if line.startswith("<!--") and line.endswith("-->") and 0 < len(line) - len("<!---->") <= MOST_COMMENT:
        _whole(marks, lines, number, "comment")


def _file(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if line.startswith(("diff --git ", "Index: ")) or _COMMIT.match(line):
        _whole(marks, lines, number, "file")


def _bracket(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if found := _STAMP.match(line):
        _stamp(marks, line, found.end(1), text, lines, number)
    elif end := _end_of_name(line):
        _begun(marks, line, lines, number, end, "bracket")


def _end_of_name(line: str) -> int:
    """The end of a name in brackets and its colon; 0 of other text in brackets, such as a link or a level of a log."""
    end = line.find("]" if line[0] == "[" else "\u3011", 1, MOST_BRACKETED + 2)
    name, rest = line[1:end], line[end + 1 :]
    if end < 0 or line[0] in name or rest[:1] == "(" or name.strip().lower() in _SEVERITIES:
        return 0
    after = rest[1:].lstrip(" \t") if rest[:1] == ":" else ""
    word, colon, _ = after.partition(":")
    is_other = after[:1] in tuple("/<#.") or (colon and word.replace("_", "a").isalnum())
    return end + 1 + (rest[:1] == ":") if any(map(str.isalnum, name)) and not is_other else 0


def _begun(marks: Marks, line: str, lines: TextLines, number: int, end: int, group: str) -> None:
    """A label up to `end` of a line, or the whole line if what follows is a title."""
    rest = len(line) - end
    if rest <= REST and not (rest and line.endswith(_STOPS)):
        _whole(marks, lines, number, group)
    else:
        _begin(marks, lines, number, end, group)


def _stamp(marks: Marks, line: str, end: int, text: str, lines: TextLines, number: int) -> None:
    """Add the time up to `end` of a line, with the speaker after it. Before lines without a time, such as a trace, the
    whole line is the label."""
    speaker, _, said = line[end:].lstrip(" \t:|-").partition(":")
    if end >= len(line) - 1:
        _whole(marks, lines, number, "time")
    elif said[:1].isspace() and len(speaker) <= MOST_NAME and speaker[:1].isalpha():
        _begin(marks, lines, number, len(line) - len(said), "stamp")
    elif len(line) < LONGEST_STAMPED and _is_followed(text, lines, number):
        _whole(marks, lines, number, "stamp")
    else:
        _begin(marks, lines, number, end, "stamp")


def _is_followed(text: str, lines: TextLines, number: int) -> bool:
    """Whether a line without a time follows."""
    return number + 1 < len(lines.places[0]) and not _STAMP.match(lines.text(text, number + 1, 40))


def _number(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    found = _NUMBERED.match(line)
    stamp, item, section = found.groups() if found else ("", "", "")
    if stamp:
        _stamp(marks, line, len(stamp), text, lines, number)
    elif item and lines.fresh[number] and lines.apart[number]:
        _begun(marks, line, lines, number, len(item), "item")
    elif item:
        _begin(marks, lines, number, len(item), "item" if lines.fresh[number] else "list")
    elif found and len(line) <= TITLE and not line.endswith(_STOPS) and (section or lines.fresh[number]):
        _whole(marks, lines, number, "numbered", section.count(".") if section else 0)
    elif lines.apart[number] or not lines.fresh[number] or not 3 <= len(line) - 2 <= MOST_COMMENT:
        return
    elif line[0] == "(" and line[-1] == ")" and line.count("(") == line.count(")") == 1:
        _whole(marks, lines, number, "bracket")


def _title(marks: Marks, text: str, lines: TextLines, number: int) -> None:
    line = lines.text(text, number)
    if (found := _TITLED.match(line)) and (len(line) <= found.end(1) + 1 or not line.endswith(_STOPS)):
        if ":" not in line:
            _whole(marks, lines, number, f"title {found[2].lower()}")
    elif line[0] == "\u7b2c" and any(sign in _WIDE_TITLES for sign in line[2:8]):
        _whole(marks, lines, number, "title")
    elif group := _group_of_title(line, lines, number):
        _whole(marks, lines, number, group)


def _group_of_title(line: str, lines: TextLines, number: int) -> str:
    """The group of a line after a blank one that is a title by its form; "" for others."""
    stem = line[:-1] if line[-1] in "/\\:" else line
    path = (stem != line or "/" in line or "." in line or "\\" in line) and stem.translate(_PATH_SIGNS).isalnum()
    path = path and stem[-1] not in "/\\"
    if line.endswith(_STOPS) or '"' in line or (line[0].islower() and not path):
        return ""
    if line.endswith(":"):
        return "path" if path else "colon"
    if (found := _ENDS_WITH_TIME.match(line)) and found.end(1) <= MOST_NAME:
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
