"""Labels in tags: opening tags with their attributes, HTML headings and the header rows of HTML tables."""

from collections.abc import Sequence
from string import ascii_letters

from router.prompt.labels.marks import Marks

SHORT_ELEMENT = 200
"""Characters. An element without attributes and others inside that is not longer is text, not a label with text."""
SHORT_CHILD = 100
"""Characters."""
LONGEST_HEADER = 2000
MOST_NAME, MOST_ATTRIBUTES, MOST_WHITE = 61, 401, 200
"""Characters. A longer name or more attributes make no tag; after more white space, a line goes on."""
_FIRST, _SIGNS = f"{ascii_letters}_", dict.fromkeys(map(ord, "_:.-"), "a")
"""How a name begins, and what it has besides letters and digits."""
_LAYOUT = frozenset(
    str.split(
        "html head body div span p ul ol li dl dt dd tr td th thead tbody tfoot colgroup col br hr a b i u s em strong"
        " img small big sub sup font center pre code tt kbd blockquote style script link meta input button form label"
        " nav header footer main svg path g think"
    )
)
"""HTML elements that name nothing."""


_Tag = tuple[int, int, str, str, str, str]
"""Where it starts and ends, the slash of an end tag, the name, the attributes, and the slash of an empty element."""


def add_tags(marks: Marks, text: str) -> None:
    """Add the marks of these forms."""
    if "<" not in text:
        return
    found = _tags(text)
    closed = {name for _, _, slash, name, *_ in found if slash}
    depths: dict[str, int] = {}
    skipped, after = -1, -1  # an end tag that belongs to a short element; the end of the last header
    for number, (start, end, slash, name, attributes, empty) in enumerate(found):
        if start < after or number == skipped or empty:
            continue
        following = found[number + 1] if number + 1 < len(found) else None
        ends_next = following is not None and following[2] == "/" and following[3] == name
        if len(name) == 2 and name[0] == "h" and name[1] in "123456":
            if not slash and ends_next and following is not None:
                if text[end : following[0]].strip():
                    marks.add(start, _line_end(text, following[1]), "heading", int(name[1]))
                skipped = number + 1
        elif name == "th" and not slash:
            end = text.find("</tr", end, end + LONGEST_HEADER)
            row = text.rfind("<tr", max(0, start - 200), start)
            if end > 0 and row >= 0 and text.find("<td", start, end) < 0:
                after = end = text.find(">", end) + 1 or end
                marks.add(row, end, "html table")
        elif name == "table":
            if slash:
                marks.add(end, end, "html table", closes=True)
        elif name not in _LAYOUT:
            if slash:
                depth = depths.get(name, 0)
                depths[name] = max(0, depth - 1)
                if depth:
                    marks.add(start, end, f"tag {name}", depth, closes=True)
            elif not attributes and ends_next and following is not None and following[0] - end <= SHORT_ELEMENT:
                skipped = number + 1
            elif name in closed:
                depths[name] = depths.get(name, 0) + 1
                named = _first_child(text, found[number + 1 : number + 4], end, is_named=bool(attributes))
                marks.add(start, _line_end(text, named), f"tag {name}", depths[name])
            elif _is_alone(text, start, end):
                marks.add(start, _line_end(text, end), f"tag {name}")


def _tags(text: str) -> list[_Tag]:
    """The tags of a text, in its order."""
    before, *parts = text.split("<")
    found, start = list[_Tag](), len(before)
    for part in parts:
        inside, closed, _ = part.partition(">")
        slash = "/" if inside.startswith("/") else ""
        name, *attributes = inside.removeprefix("/").split(None, 1) or [""]
        rest = len(inside) - len(slash) - len(name)
        empty = "/" if not rest and name.endswith("/") else ""
        name = name.removesuffix(empty).lower()
        is_name = inside[len(slash) : len(slash) + 1] in _FIRST and name.translate(_SIGNS).isalnum()
        if closed and is_name and len(name) <= MOST_NAME and rest <= MOST_ATTRIBUTES:
            found.append((start, start + len(inside) + 2, slash, name, "".join(attributes).strip(), empty))
        start += len(part) + 1
    return found


def _is_alone(text: str, start: int, end: int) -> bool:
    """Whether the tag is all of its line."""
    return (not start or text[start - 1] == "\n") and text[end : end + 1] in ("", "\n", "\r")


def _line_end(text: str, end: int) -> int:
    """The end of the line, if only white space stands between."""
    after = text[end : end + MOST_WHITE]
    rest = after.lstrip(" \t").removeprefix("\r")
    return end + len(after) - len(rest) + 1 if rest.startswith("\n") else end


def _first_child(text: str, following: Sequence[_Tag], end: int, *, is_named: bool) -> int:
    """The end of the first child element, if it is short: the name of a record is often one. Else `end`. following: the
    three tags after an opening tag, which ends at `end`. is_named: it has attributes; then another child must follow.
    """
    if len(following) < 2 or (is_named and (len(following) < 3 or following[2][2])):
        return end
    child, close = following[:2]
    is_child = not child[2] and close[2] == "/" and close[3] == child[3] and not text[end : child[0]].strip()
    return close[1] if is_child and close[0] - child[1] <= SHORT_CHILD else end
