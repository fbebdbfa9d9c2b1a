"""The matrices that `nvidia-smi topo` prints, found in any text around them: prompts, legends, other commands.

Columns count from the header, never a fixed number. Rows are split on tabs where tabs separate, else on blanks; the
`X` of each row must stand in its own column, so a row that was cut or shifted is told, not misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet.readers.building import Faults, lines_of
from fleet.yaml_source import printable

PCIE_WORDS = ("PSB", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""From near to far; PSB (one board) and SOC (now SYS) come from old drivers."""
P2P_WORDS = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
UNKNOWN_WORDS = ("N/A", "-")

_LANES = re.compile(r"NV([1-9][0-9]{0,3})", re.ASCII)
_GPU = re.compile(r"GPU([0-9]{1,9})", re.ASCII)
_TAIL = re.compile(r"(?:CPU|NUMA|Memory)[ \t]+Affinity|GPU[ \t]+NUMA[ \t]+ID", re.I)
_COMMAND = re.compile(r"\btopo(?:logy)?[ \t]+(--?[a-z][a-z0-9_-]*)(?:[ \t=]+([a-z]{1,5})\b)?", re.ASCII)
_QUOTE = re.compile(r"^[ \t]*[>#|]+[ ]?")
_NAMES_RUN = re.compile(r"(?:(?:GPU|NIC)[0-9]{1,4}){2,}", re.ASCII)
_WORDS_RUN = re.compile(r"(?:NV[1-9][0-9]{0,3}|PSB|PIX|PXB|PHB|NODE|SYS|SOC|X){2,}", re.ASCII)
_SHOWN = 60
_MAX_LINE = 20_000
_MAX_COLUMNS = 512
"""No node has more cards and NICs; a longer line is no header."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix. `cells` by (row, column), `affinity` by row and column name (None = unknown), `lines` by row.

    `command` is `m`, `mp`, `p2p r` and so on where the text shows the command, else empty.
    """

    line: int
    columns: tuple[str, ...]
    tails: tuple[str, ...]
    command: str
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity: dict[str, dict[str, str | None]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if _GPU.fullmatch(name))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if not _GPU.fullmatch(name))

    @property
    def is_p2p(self) -> bool:
        """Whether the words are those of `-p2p`; a matrix without words is what its command says."""
        words = {word for (row, column), word in self.cells.items() if row != column} - set(UNKNOWN_WORDS)
        return bool(words & set(P2P_WORDS)) if words else self.command.startswith("p2p")


@dataclass(frozen=True, slots=True)
class _Header:
    columns: tuple[str, ...]
    tails: tuple[str, ...]
    starts: tuple[int, ...]
    """Where each affinity column begins, tabs expanded."""

    @property
    def is_certain(self) -> bool:
        return bool(self.tails) or sum(bool(_GPU.fullmatch(name)) for name in self.columns) > 1


def gpu_number(name: str) -> int:
    """3 of `GPU3`."""
    match = _GPU.fullmatch(name)
    assert match is not None, "only names that are GPUs come here"
    return int(match[1])


def lanes_of(word: str) -> int | None:
    """12 of `NV12`, None of any other word."""
    match = _LANES.fullmatch(word)
    return int(match[1]) if match else None


def shows_matrix(text: str) -> bool:
    """Whether some line of the text is the header of a matrix with a row or enough columns to be sure of it."""
    lines = lines_of(text)
    number = 0
    while number < len(lines):
        header = _header(lines[number]) if "GPU" in lines[number] else None
        number += 1
        if header is not None:
            number, has_rows = _next_row(lines, number, header)
            if has_rows or header.is_certain:
                return True
    return False


def find_matrices(text: str, faults: Faults) -> list[Matrix]:
    """Every matrix of a text, in its order. Faults (cut rows, unknown words) go to `faults`."""
    lines = lines_of(text)
    found: list[Matrix] = []
    command, number = "", 0
    while number < len(lines):
        line = lines[number]
        named = _command(line)
        command = command if named is None else named
        header = _header(line) if "GPU" in line else None
        number += 1
        if header is None:
            continue
        began = number
        number, has_rows = _next_row(lines, number, header)
        if not has_rows:
            if header.is_certain:
                faults.tell(began, "", "names GPUs as columns, but no row follows: paste the whole matrix")
            continue
        matrix = Matrix(line=began, columns=header.columns, tails=header.tails, command=command)
        number = _rows(lines, number, header, matrix, faults)
        _complete(matrix, number, faults)
        found.append(matrix)
        command = ""
    return found


def _command(line: str) -> str | None:
    match = _COMMAND.search(line)
    if match is None:
        return None
    option, argument = match[1].lstrip("-"), match[2] or ""
    if option in ("p2p", "p2p_status", "p2p-status"):
        return f"p2p {argument}".strip()
    return {"m": "m", "matrix": "m", "mp": "mp", "matrix_pci": "mp", "matrix-pci": "mp"}.get(option)


def _clean(line: str) -> str:
    """Without the marks of a quoted or commented paste."""
    return _QUOTE.sub("", line)


def _apart(token: str) -> list[str]:
    """The names or words of a token: a wide matrix copied from a terminal may have lost blanks (`NODEPIX`)."""
    if _NAMES_RUN.fullmatch(token):
        return re.findall("[A-Z]+[0-9]+", token)
    return re.findall("NV[0-9]+|NODE|X|[A-Z]{3}", token) if _WORDS_RUN.fullmatch(token) else [token]


def _is_word(token: str) -> bool:
    return (
        token == "X"
        or token in PCIE_WORDS
        or token in P2P_WORDS
        or token in UNKNOWN_WORDS
        or lanes_of(token) is not None
    )


def _header(line: str) -> _Header | None:
    if len(line) > _MAX_LINE:
        return None
    line = _clean(line).expandtabs(8)
    tail = _TAIL.search(line)
    tokens = (line if tail is None else line[: tail.start()]).split()[: _MAX_COLUMNS + 1]
    columns = [piece for token in tokens for piece in _apart(token)]
    if (
        not 0 < len(columns) <= _MAX_COLUMNS
        or not (_GPU.fullmatch(columns[0]) or "MIG" in columns[0])
        or any(map(_is_word, columns))
    ):
        return None
    if not any(map(_GPU.fullmatch, columns)):
        return None
    pieces = [] if tail is None else list(re.finditer(_TAIL.pattern + r"|\S+(?: \S+)*", line[tail.start() :], re.I))
    base = 0 if tail is None else tail.start()
    tails = tuple(re.sub(r"\s+", " ", piece[0]).lower() for piece in pieces)
    return _Header(tuple(columns), tails, tuple(base + piece.start() for piece in pieces))


def _is_row(line: str, header: _Header) -> bool:
    if len(line) > _MAX_LINE:
        return False
    tokens = _clean(line).split(None, _MAX_COLUMNS + 1)
    return len(tokens) > 1 and tokens[0] in header.columns and any(map(_is_word, tokens[1:]))


def _is_header_again(line: str, header: _Header) -> bool:
    again = _header(line)
    return again is not None and again.columns == header.columns


def _next_row(lines: list[str], number: int, header: _Header) -> tuple[int, bool]:
    """(index of the first line that is neither blank nor the header again, whether that is a row)."""
    while number < len(lines) and (not _clean(lines[number]).strip() or _is_header_again(lines[number], header)):
        number += 1
    return number, number < len(lines) and _is_row(lines[number], header)


def _rows(lines: list[str], number: int, header: _Header, matrix: Matrix, faults: Faults) -> int:
    """Reads rows from `number` on; the index of the first line behind them."""
    end = number
    while number < len(lines):
        line = lines[number]
        number += 1
        first = _clean(line).split(None, 1)[:1]
        if not first:
            continue
        if not _is_row(line, header):
            if _is_header_again(line, header) and len(matrix.lines) < len(header.columns):
                continue
            if _GPU.fullmatch(first[0]) and _header(line) is None:
                known = first[0] in header.columns
                why = "has no cells" if known else f"is no column of the header (line {matrix.line})"
                faults.tell(number, first[0], f"{why}: paste the whole matrix")
            break
        if first[0] in matrix.lines:
            faults.tell(number, first[0], f"stands twice, first in line {matrix.lines[first[0]]}; keep one matrix")
            continue
        matrix.lines[first[0]] = end = number
        _row(line, number, header, matrix, faults)
    return end


def _row(line: str, number: int, header: _Header, matrix: Matrix, faults: Faults) -> None:
    name, cells, tail = _split(_clean(line), len(header.columns))
    if len(cells) < len(header.columns):
        message = f"has {len(cells)} cells where the header (line {matrix.line}) names {len(header.columns)} columns"
        faults.tell(number, name, f"{message}: the row is cut or wrapped; paste it whole")
        return
    own = header.columns.index(name)
    for position, (column, word) in enumerate(zip(header.columns, cells, strict=True)):
        if not _is_word(word):
            known = f"NV and a number, {', '.join((*PCIE_WORDS, *P2P_WORDS))}"
            faults.tell(
                number, f"{name}-{column}", f"{printable(word, _SHOWN)} is no word of a topology matrix ({known})"
            )
        elif (word == "X") != (position == own):
            message = "X stands outside its own column" if word == "X" else f"must be X, is {word}"
            faults.tell(number, f"{name}-{column}", f"{message}: cells of this row are missing or shifted")
        else:
            matrix.cells[name, column] = word
    values = _in_columns(tail, header)
    if values is None:
        more = "more cells than the header has columns"
        faults.tell(number, name, f"has {more} (line {matrix.line}): a cell was split or added")
    else:
        matrix.affinity[name] = dict(zip(header.tails, values, strict=True))


def _split(line: str, width: int) -> tuple[str, list[str], list[str] | list[tuple[int, str]]]:
    """(row name, cells, what stands behind them): texts where tabs separate, else (position, text)."""
    if "\t" in line:
        pieces = [piece.strip() for piece in line.lstrip().split("\t")]
        cells = pieces[1 : width + 1]
        if len(cells) == width and all(len(cell.split()) == 1 for cell in pieces[: width + 1]):
            return pieces[0], cells, pieces[width + 1 :]
    found = re.finditer(r"\S+", line.expandtabs(8))
    tokens = [(match.start(), piece) for match in found for piece in _apart(match[0])]
    texts = [text for _, text in tokens]
    return texts[0], texts[1 : width + 1], tokens[width + 1 :]


def _in_columns(tail: list[str] | list[tuple[int, str]], header: _Header) -> list[str | None] | None:
    """The affinity cells in the order of the header's columns, None where unknown; None when there are too many."""
    width = len(header.tails)
    texts = [piece for piece in tail if isinstance(piece, str)]
    placed = _joined(piece for piece in tail if isinstance(piece, tuple))
    if len(placed) > width:
        return None
    if placed and len(placed) < width:
        return _by_position(placed, header.starts)
    cells = texts or [text for _, text in placed]
    # nvidia-smi prints one tab more before an N/A, and before the id of a card's own memory (GH200, GB200)
    last = max((at for at, cell in enumerate(cells) if cell), default=0)
    own = last if header.tails[-1:] == ("gpu numa id",) else -1
    for at in range(len(cells) - 1, 0, -1):
        if len(cells) > width and (cells[at] == "N/A" or at == own) and not cells[at - 1]:
            del cells[at - 1]
    while len(cells) > width and not cells[-1]:
        cells.pop()
    if len(cells) > width:
        return None
    return [_known(cell) for cell in cells] + [None] * (width - len(cells))


def _joined(pieces: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    """`0-3, 8-11` is one list."""
    found: list[tuple[int, str]] = []
    for at, text in pieces:
        if found and found[-1][1].endswith(","):
            found[-1] = (found[-1][0], found[-1][1] + text)
        else:
            found.append((at, text))
    return found


def _by_position(placed: list[tuple[int, str]], starts: tuple[int, ...]) -> list[str | None]:
    """Each cell under the nearest column that is still free, in order; enough columns stay for the cells to come."""
    values: list[str | None] = [None] * len(starts)
    free = 0
    for rest, (at, text) in zip(range(len(placed) - 1, -1, -1), placed, strict=True):
        column = min(range(free, len(starts) - rest), key=lambda i: abs(starts[i] - at))
        values[column] = _known(text)
        free = column + 1
    return values


def _known(cell: str) -> str | None:
    return None if cell in ("", "N/A", "-") else cell


def _complete(matrix: Matrix, line: int, faults: Faults) -> None:
    """Tells columns given twice, rows that are missing, and words of both kinds in one matrix."""
    for position, name in enumerate(matrix.columns):
        if name in matrix.columns[:position]:
            faults.tell(matrix.line, name, "names two columns of one matrix")
        elif "MIG" in name:
            message = "is a MIG slice: its memory and its links are not those of the card; list the cards only"
            faults.tell(matrix.line, name, message)
    missing = [name for name in matrix.gpus if name not in matrix.lines]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        faults.tell(line, "", f"the matrix ends here, but the rows of {shown} are missing: paste it whole")
    words = {word for (row, column), word in matrix.cells.items() if row != column} - set(UNKNOWN_WORDS)
    if words & set(P2P_WORDS) and words - set(P2P_WORDS):
        some = f"{min(words & set(P2P_WORDS))} and {min(words - set(P2P_WORDS))}"
        faults.tell(matrix.line, "", f"mixes words of -p2p and of -m ({some}) in one matrix")
