"""`vllm serve ...` and `python -m sglang.launch_server ...` in a text -> what they say of bytes.

Two commands are prefill and decode: by the role that they state, else in the order of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.launch.flags import SGLANG, VLLM, Flags, read_flags
from fleet.launch.manifests import serving_commands
from fleet.launch.words import Command
from fleet.units import UnitError, parse_utilization
from fleet.yaml_source import read_text

_COUNT = re.compile(r"([0-9]{1,12})([kKmM]?)")
_SCALE = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
"""vLLM's own reading of counts: 32k is 32,000 and 32K is 32,768."""
_KV = {
    "auto": None, "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip
_WEIGHTS = {"auto": None, "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_CONNECTORS = {"NixlConnector": "vllm-nixl", "MooncakeConnector": "mooncake"}
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": None}
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_IMAGE = re.compile(r"(?:[a-z0-9.:-]+/)?vllm/vllm-openai(?:[:@].*)?")
"""The container image whose entry point is the server: flags follow its name."""
MOST_COMMANDS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What one serving command says. None = not said. `line` is where it begins; `flags`: field -> flag.

    `tp`, `pp`: ranks. `max_len` tokens a request, `max_seqs` requests at once, `block` tokens of a block or page.
    `pool` blocks or tokens that a flag sets, whatever memory there is.
    `engine` is what moves the cache, None when no transfer is configured. `unpriced` and `notes` in words.
    """

    server: str
    line: int
    role: str | None = None
    model: str | None = None
    tp: int | None = None
    pp: int | None = None
    max_len: int | None = None
    max_seqs: int | None = None
    block: int | None = None
    kv_dtype: str | None = None
    weights_dtype: str | None = None
    utilization: str | None = None
    kv_bytes: int | None = None
    pool: int | None = None
    engine: str | None = None
    kv_buffer: str | None = None
    flags: dict[str, str] = field(default_factory=dict)
    unpriced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_launches(path: str) -> tuple[Launch, ...]:
    """The serving commands of a file (`-`: stdin): one for both phases, or prefill's and decode's in this order.

    Raises DescriptionError with every fault: no such command, flags that contradict each other, roles that do not pair.
    """
    source = "<stdin>" if path == "-" else path
    return launches_of(read_text(path), source)


def launches_of(text: str, source: str) -> tuple[Launch, ...]:
    """The same of a text."""
    faults: list[Fault] = []
    found = []
    for command in serving_commands(text, source):
        if command.words[0].startswith("--"):
            told = "begins with a flag: a comment, an empty line or $( ) ended the command before it; join them"
            faults.append(Fault(source=source, field=command.words[0][:64], message=told, line=command.line, column=1))
        server = _server_of(command)
        if server is not None:
            found.append(_launch(server[0], server[1], command.line, source, faults))
    if not found and not faults:
        words = "holds no serving command: vllm serve MODEL ..., or python -m sglang.launch_server --model-path MODEL"
        faults.append(Fault(source=source, field="", message=words))
    if len(found) > MOST_COMMANDS:
        words = f"holds {len(found)} serving commands; give one for both phases, or one of prefill and one of decode"
        faults.append(Fault(source=source, field="", message=words, line=found[2].line, column=1))
    pair = _paired(found[:MOST_COMMANDS], source, faults)
    if faults:
        raise DescriptionError(faults)
    return pair


def _server_of(command: Command) -> tuple[str, tuple[str, ...]] | None:
    """(vllm or sglang, the words behind it) of a command; None when it serves nothing."""
    words = list(command.words)
    while words and (_ENVIRONMENT.fullmatch(words[0]) or words[0] in ("exec", "env", "nohup", "export")):
        words.pop(0)
    for at, word in enumerate(words):
        rest = tuple(words[at + 1 :])
        name = word.rsplit("/", 1)[-1]
        if name in ("vllm", "sglang") and rest[:1] == ("serve",):
            return name, rest[1:]
        if _IMAGE.fullmatch(word) and rest[:2] != ("vllm", "serve"):
            return "vllm", rest[1:] if rest[:1] == ("serve",) else rest
        if word == "-m" and rest[:1] == ("sglang.launch_server",):
            return "sglang", rest[1:]
        if word == "-m" and rest[:1] == ("vllm.entrypoints.openai.api_server",):
            return "vllm", rest[1:]
    return None


class _Values:
    """Reads the values of one command; each method books a fault where it cannot."""

    def __init__(self, flags: Flags, book: Callable[[str, str], None]) -> None:
        self.flags, self.book = flags, book

    def text(self, name: str) -> str | None:
        return self.flags.fields[name][1] if name in self.flags.fields else None

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        found = _COUNT.fullmatch(value)
        if found is None or int(found[1]) < 1:
            self.book(self.flags.fields[name][0], f"{value[:64]!r} is no count of 1 or more")
            return None
        return int(found[1]) * _SCALE[found[2]]

    def choice(self, name: str, words: dict[str, str | None]) -> str | None:
        value = self.text(name)
        if value is not None and value not in words:
            self.book(self.flags.fields[name][0], f"{value[:64]!r} is not priced; use {', '.join(words)}")
        return None if value is None else words.get(value)

    def share(self, name: str) -> str | None:
        value = self.text(name)
        try:
            if value is not None:
                parse_utilization(value)
        except UnitError as error:
            self.book(self.flags.fields[name][0], str(error))
        return value


def _launch(server: str, words: tuple[str, ...], line: int, source: str, faults: list[Fault]) -> Launch:
    def book(flag: str, message: str) -> None:
        faults.append(Fault(source=source, field=flag, message=message, line=line, column=1))

    flags = read_flags(words, VLLM if server == "vllm" else SGLANG)
    for flag, message in flags.faults:
        book(flag, message)
    values = _Values(flags, book)
    model = values.text("model")
    if flags.bare and server == "vllm":
        first = flags.bare.pop(0)
        if model is not None and model != first:
            book(flags.fields["model"][0], f"says {model[:64]!r}, but the command serves {first[:64]!r}; keep one")
        model = first
    if model is None:
        book("", f"names no model; write {'vllm serve MODEL' if server == 'vllm' else '--model-path MODEL'}")
    elif "$" in model or "`" in model:
        book("model", f"{model[:64]!r} is left to a shell, which is not asked; write the model's path or id")
    notes = [*flags.notes, *(f"{word[:64]!r}: belongs to no flag; nothing is taken from it" for word in flags.bare)]
    launch = Launch(
        server=server, line=line, model=model, tp=values.count("tp"), pp=values.count("pp"),
        max_len=values.count("max_len"), max_seqs=values.count("max_seqs"), block=values.count("block"),
        kv_dtype=values.choice("kv_dtype", _KV), weights_dtype=values.choice("weights_dtype", _WEIGHTS),
        utilization=values.share("utilization"), kv_bytes=values.count("kv_bytes"), pool=values.count("pool"),
        flags={name: flag for name, (flag, _) in flags.fields.items()}, unpriced=tuple(flags.unpriced),
    )  # fmt: skip
    told = _vllm_transfer(values, book) if server == "vllm" else _sglang_transfer(values, book)
    notes += told.pop("notes", ())
    unpriced = (*launch.unpriced, *told.pop("unpriced", ()))
    return replace(launch, notes=tuple(notes), unpriced=unpriced, **told)


def _vllm_transfer(values: _Values, book: Callable[[str, str], None]) -> dict[str, Any]:
    """What `--kv-transfer-config` says: a JSON object with kv_connector, kv_role and kv_buffer_device."""
    text = values.text("transfer")
    if text is None:
        return {}
    flag = values.flags.fields["transfer"][0]
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        book(flag, 'is no JSON; quote it as a whole, e.g. \'{"kv_connector": "NixlConnector"}\'')
        return {}
    if not isinstance(config, dict):
        book(flag, "is no JSON object")
        return {}
    connector, role, buffer = (config.get(name) for name in ("kv_connector", "kv_role", "kv_buffer_device"))
    told: dict[str, Any] = {"notes": ()}
    if connector in _CONNECTORS:
        told["engine"] = _CONNECTORS[connector]
    else:
        known = ", ".join(_CONNECTORS)
        told["unpriced"] = (f"{flag}: what kv_connector {str(connector)[:64]!r} moves was not read (known: {known})",)
    if role is not None and role not in _ROLES:
        book(flag, f"kv_role {str(role)[:64]!r} is unknown; use {', '.join(_ROLES)}")
    told["role"] = _ROLES.get(role) if isinstance(role, str) else None
    if buffer not in (None, "cuda", "cpu"):
        book(flag, f"kv_buffer_device {str(buffer)[:64]!r} is not priced; use cuda or cpu")
    told["kv_buffer"] = "host" if buffer == "cpu" else None
    more = sorted(str(name)[:64] for name in config if name not in ("kv_connector", "kv_role", "kv_buffer_device"))
    if more:
        told["notes"] = (f"{flag}: nothing is taken from {', '.join(more[:8])}",)
    return told


def _sglang_transfer(values: _Values, book: Callable[[str, str], None]) -> dict[str, Any]:
    mode = values.choice("role", {"prefill": "prefill", "decode": "decode", "null": None})
    notes = []
    if (backend := values.text("backend")) is not None:
        notes.append(f"transfer backend {backend[:64]}: moves the pages that SGLang names")
    if values.text("utilization") is not None:
        notes.append("--mem-fraction-static is SGLang's share for weights and cache alone; here it bounds all lines")
    return {"role": mode, "engine": "sglang" if mode else None, "notes": tuple(notes)}


_ALIKE = (("server", "server"), ("model", "model"), ("kv_dtype", "kv_dtype"), ("engine", "transfer"),
          ("weights_dtype", "weights_dtype"), ("kv_buffer", "transfer"), ("utilization", "utilization"),
          ("max_seqs", "max_seqs"))  # fmt: skip
"""(what both commands must say alike, the field whose flag is named)."""


def _paired(found: list[Launch], source: str, faults: list[Fault]) -> tuple[Launch, ...]:
    """Prefill's command first; both must be of one model, engine and cache type."""
    if len(found) < MOST_COMMANDS:
        return tuple(found)
    first, second = found
    if first.role is not None and first.role == second.role:
        words = f"both commands are of {first.role}; one must be of prefill and one of decode"
        faults.append(Fault(source=source, field="", message=words, line=second.line, column=1))
    if first.role == "decode" or second.role == "prefill":
        first, second = second, first
    for name, field_name in _ALIKE:
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            flag = second.flags.get(field_name) or first.flags.get(field_name) or name
            words = f"prefill says {_told(one)}, decode {_told(other)}; one plan has one"
            faults.append(Fault(source=source, field=flag, message=words, line=second.line, column=1))
    return replace(first, role="prefill"), replace(second, role="decode")


def _told(value: object) -> str:
    return "nothing" if value is None else str(value)[:64]
