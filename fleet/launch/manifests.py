"""Commands inside other texts: containers of a YAML manifest (`command`, `args`, `image`), and `sh -c "..."`.

A manifest is read as data; nothing of it is run, and no template is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet.launch.words import Command, commands_of
from fleet.yaml_source import Document, Node, parse_text

_IS_MANIFEST = re.compile(r"""^[ \t]*(?:-[ \t]+)?(?:args|command)[ \t]*:(?:[ \t]*$|[ \t]+[\["'|>\w-])""", re.MULTILINE)
_BETWEEN = re.compile(r"^---[ \t]*$", re.MULTILINE)
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ash"))
_OPTIONS = re.compile(r"-[a-z]*c")
_DEPTH = 2


def serving_commands(text: str, source: str) -> list[Command]:
    """Every command of a shell text, or of a manifest's containers; those handed to a shell are taken apart."""
    found = list(_of_manifest(text, source)) if _IS_MANIFEST.search(text) else commands_of(text, source)
    return [inner for command in found for inner in _unwrapped(command, source, _DEPTH)]


def _of_manifest(text: str, source: str) -> Iterator[Command]:
    line = 0
    for part in _BETWEEN.split(text):
        document = parse_text("\n" * line + part, source)
        yield from _of_node(document.root, document, source)
        line += part.count("\n")


def _of_node(node: Node, document: Document, source: str) -> Iterator[Command]:
    value = node.value
    if isinstance(value, dict):
        own = [value[key] for key in ("command", "args") if key in value]
        if own:
            image = value["image"].value if "image" in value else None
            words = [word for part in own for word in _words(part, source)]
            # Words that begin with a flag, or `args` alone, go to the program that the image begins with.
            if isinstance(image, str) and ("command" not in value or (words[:1] and words[0].startswith("-"))):
                words.insert(0, image)
            if words:
                yield Command(line=document.position(own[0].key_index)[0], words=tuple(words))
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for inner in below:
        yield from _of_node(inner, document, source)


def _words(node: Node, source: str) -> list[str]:
    """A list of words as it stands; one text as a shell would split it."""
    if isinstance(node.value, list):
        return [inner.value for inner in node.value if isinstance(inner.value, str)]
    if isinstance(node.value, str):
        return [word for command in commands_of(node.value, source)[:1] for word in command.words]
    return []


def _unwrapped(command: Command, source: str, depth: int) -> Iterator[Command]:
    words = command.words
    for at in range(len(words) - 2):
        is_shell = words[at].rsplit("/", 1)[-1] in _SHELLS and _OPTIONS.fullmatch(words[at + 1]) is not None
        if depth and is_shell:
            for inner in commands_of(words[at + 2], source):
                moved = Command(line=command.line + inner.line - 1, words=inner.words)
                yield from _unwrapped(moved, source, depth - 1)
            return
    yield command
