"""A shell text -> the words of each command in it. Nothing is expanded, looked up or run.

Continued lines are joined, comments dropped, quotes taken as a shell takes them. A command ends at a line's end or at
`;`, `&`, `|`; what a shell would compute (`$X`, backquotes) stays as it is written, for the reader to refuse.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.errors import DescriptionError

MAX_TEXT = 1 << 18
MAX_WORDS = 4096
_ENDS = frozenset((";", "&", "&&", "|", "||", "(", ")", ";;", "|&"))
_REDIRECTS = frozenset("<>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """The words of one command and the line on which it begins."""

    line: int
    words: tuple[str, ...]


def commands_of(text: str, source: str) -> list[Command]:
    """Every command of a text. Raises DescriptionError where a quote does not end, or the text is absurdly long."""
    if len(text) > MAX_TEXT:
        raise DescriptionError.at(source, "", f"is longer than {MAX_TEXT:,} characters: no launch line")
    found = []
    for line, logical in _logical_lines(text):
        try:
            lexer = shlex.shlex(logical, posix=True, punctuation_chars="();<>|&")
            lexer.whitespace_split, lexer.commenters = True, ""
            words = list(lexer)
        except ValueError as error:
            raise DescriptionError.at(source, "", f"a quote or escape does not end ({error})", line, 1) from error
        if len(words) > MAX_WORDS:
            raise DescriptionError.at(source, "", f"a command of more than {MAX_WORDS:,} words", line, 1)
        found += [Command(line=line, words=part) for part in _split(words)]
    return found


def _split(words: list[str]) -> Iterator[tuple[str, ...]]:
    """Parts between `;`, `&` and `|`; redirections and their files are dropped."""
    part: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _ENDS:
            if part:
                yield tuple(part)
            part = []
        elif word and set(word) <= _REDIRECTS | {"&"}:
            skip = True
            if part and part[-1] in ("1", "2"):
                part.pop()
        else:
            part.append(word)
    if part:
        yield tuple(part)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of each line with its continuations, without comments; a quoted text may run over lines."""
    out: list[str] = []
    quote, line, first, at = "", 1, 1, 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'" and at + 1 < len(text):
            if text[at + 1] == "\n" or text[at + 1 : at + 3] == "\r\n":
                at += 2 if text[at + 1] == "\n" else 3
                line += 1
                out.append(" " if not quote else "")
                continue
            out += [char, text[at + 1]]
            line += text[at + 1] == "\n"
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (not out or out[-1].isspace()):
            while at < len(text) and text[at] != "\n":
                at += 1
            continue
        if char == "\n":
            line += 1
            if not quote:
                if "".join(out).strip():
                    yield first, "".join(out)
                out, first = [], line
                at += 1
                continue
        if not out:
            first = line
        out.append(char)
        at += 1
    if "".join(out).strip():
        yield first, "".join(out)
