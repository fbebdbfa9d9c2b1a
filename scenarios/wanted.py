"""What a command line or a scenario file asks for, in the user's words, and how it becomes a request that is answered.

Nothing is decided here: files are read, a prompt is encoded, defaults are chosen and named in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError, Fault
from fleet.host_return import assume_host_return
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.model import Model, with_mtp
from fleet.units import UnitError, format_utilization, parse_utilization
from planner.admit import Ask, utilization_of
from planner.engines import ENGINES, engine_extent
from planner.orders import sampling_to_document
from planner.rates import fleet_at
from planner.request import DEFAULT_SEED, DEFAULT_STEPS, DEFAULT_TOP_P, MAX_COUNT, Request, Unpriced, resolve
from scenarios.documents import digest_of
from scenarios.placing import chosen_placement
from scenarios.pricing import pricing_inputs, pricing_of
from scenarios.room_asked import with_room
from scenarios.schemas import MODEL_SIZES
from scenarios.stored_request import given_ids, ids_of_words, ids_read

if TYPE_CHECKING:
    from planner.solve import Wanting

COMMAND_LINE = "command line"
PHASES = ("prefill", "decode")
MAX_VERSION = 256
DEGREES = ("tp", "prefill_tp", "decode_tp", "pp", "prefill_pp", "decode_pp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A question: may this model be served like that on this fleet? None = left to the default.

    `source` names where the words come from (a scenario file, or the command line) in messages.
    """

    fleet: str
    sku: str | None = None
    assume_host_return: bool | None = None
    strict: bool | None = None
    model: str | None = None
    mtp: bool | None = None
    tokenizer: str | None = None
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    steps: int | None = None
    new_tokens: int | None = None
    positions: int | None = None
    batch: int | None = None
    attention: str | None = None
    kv_extent: str | None = None
    kv_dtype: str | None = None
    weights_dtype: str | None = None
    prefill_chunk: int | None = None
    layout: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    prefill: str | None = None
    decode: str | None = None
    tp: int | None = None
    prefill_tp: int | None = None
    decode_tp: int | None = None
    pp: int | None = None
    prefill_pp: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    block_size: int | None = None
    prefix_hit: int | None = None
    kv_buffer: str | None = None
    told: tuple[str, ...] = ()
    """Where launch lines say what, in words."""
    unpriced: tuple[Unpriced, ...] = ()
    """What launch lines say and nobody prices."""
    decode_pp: int | None = None
    utilization: str | None = None
    utilization_of: str | None = None
    in_use: tuple[str, ...] | None = None
    max_sequences: str | None = None
    solve: str | None = None
    ttft: str | None = None
    rates: str | None = None
    staging: str | None = None
    efficiency: str | None = None
    expect: tuple[int, ...] | None = None
    name: str | None = None
    source: str = COMMAND_LINE
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    """(line, column) of each field that the scenario file states."""
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Fields that the command line states, in place of the scenario's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A question with its files read: what to ask the planner, and what the plan will say it was asked.

    `defaults` are the choices that nobody made, in words; `chosen` the phases whose device is one of them.
    """

    ask: Ask
    inputs: dict[str, Any]
    defaults: tuple[str, ...]
    tokenizer: str | None
    chosen: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    sequences: dict[str, Any] | None = None
    solve: tuple[Wanting, Fraction | None] | None = None
    """What is to be solved for, and the time in seconds."""
    degrees: Mapping[str, int] = field(default_factory=dict)
    """Degrees and stages that were stated, by their field: `tp`, `prefill_tp`, and so on."""


def prepare(
    wanted: Wanted, fleet_text: str | None = None, *, read_fleet: Callable[..., Fleet] = load_fleet,
    read_model: Callable[..., Model] = load_model,
) -> Prepared:  # fmt: skip
    """Reads fleet, model and tokenizer. Raises DescriptionError with the faults of all of them at once.

    A fault of the question itself is told where its words stand: at a flag, or at its line of the scenario.
    `read_fleet`, `read_model`: who reads them; many questions of the same files need them read once.
    """
    try:
        return _prepare(wanted, fleet_text, read_fleet, read_model)
    except DescriptionError as error:
        raise DescriptionError([_told_where(wanted, fault) for fault in error.faults]) from error


def _told_where(wanted: Wanted, fault: Fault) -> Fault:
    if fault.source != wanted.source or fault.line:
        return fault
    if fault.field in wanted.given or wanted.source == COMMAND_LINE:
        named = fault.field.removeprefix("--").replace("_", "-")  # a few faults name the flag itself
        flag = f"--{named}" if named else ""
        return replace(fault, source=COMMAND_LINE, field=flag)
    line, column = wanted.places.get(fault.field, (0, 0))
    return replace(fault, line=line, column=column)


def _prepare(
    wanted: Wanted, fleet_text: str | None, read_fleet: Callable[..., Fleet], read_model: Callable[..., Model]
) -> Prepared:
    faults: list[Fault] = []
    fleet: Fleet | None = None
    model: Model | None = None
    try:
        fleet = read_fleet(wanted.fleet, text=fleet_text, sku=wanted.sku, strict=bool(wanted.strict))
        if wanted.assume_host_return:
            fleet = _with_host_return(fleet)
    except DescriptionError as error:
        faults.extend(error.faults)
    try:
        model = read_model(wanted.model)
    except DescriptionError as error:
        faults.extend(error.faults)
    utilization = None
    try:
        utilization = None if wanted.utilization is None else parse_utilization(wanted.utilization)
    except UnitError as error:
        faults.append(Fault(source=wanted.source, field="utilization", message=str(error)))
    if fleet is None or model is None or faults:
        raise DescriptionError(faults)
    defaults: list[str] = list(wanted.told)
    if wanted.told and model.quantisation and "weights_dtype" not in wanted.given:
        wanted = replace(wanted, weights_dtype=None)  # an engine's --dtype is then that of activations
    if wanted.mtp:
        model = _with_mtp(model, defaults)
    prompt_ids = _encode(wanted, model)
    request = _request(wanted, prompt_ids, defaults)
    pricing = pricing_of(wanted.rates, wanted.efficiency, wanted.source, wanted.staging)
    ask = Ask(
        fleet=fleet,
        model=model,
        request=request,
        placement=chosen_placement(wanted, fleet, model, defaults),
        utilization=utilization,
        expect=wanted.expect,
        pricing=pricing,
    )
    if wanted.mtp and max(ask.placement.pp) > 1:
        words = "which pipeline stage keeps multi-token-prediction layers was not read; use --pp 1, or leave --mtp out"
        raise DescriptionError.at(wanted.source, "mtp", words)
    if wanted.model is None:
        defaults.append(f"model: the embedded default {model.name}")
    if utilization is None:
        by_fleet = fleet.budget.utilization is not None
        origin = "the fleet's budget" if by_fleet else "no flag and no budget in the fleet"
        defaults.append(f"utilization: {format_utilization(utilization_of(ask))} ({origin})")
    room = with_room(wanted, replace(ask, fleet=fleet_at(fleet, pricing.rates)), fleet.digest, defaults)
    return Prepared(
        ask=room.ask,
        inputs=_inputs(wanted, replace(room.ask, fleet=fleet)) | room.inputs,
        defaults=tuple(defaults),
        tokenizer=wanted.tokenizer,
        chosen=frozenset(phase for phase in PHASES if getattr(wanted, phase) is None),
        warnings=room.warnings,
        sequences=room.sequences,
        solve=room.solve,
        degrees={name: value for name in DEGREES if (value := getattr(wanted, name)) is not None},
    )


def _with_mtp(model: Model, defaults: list[str]) -> Model:
    """The model with its multi-token-prediction layers: their weights, their caches, what is unknown of them."""
    if not model.mtp_layers and not model.mtp_unknown:
        defaults.append(f"--mtp: {model.name} has no multi-token-prediction layers that are known; nothing is added")
    return with_mtp(model)


def _with_host_return(fleet: Fleet) -> Fleet:
    more = assume_host_return(fleet)
    if more.links != fleet.links:
        return more
    unused = "--assume-host-return adds nothing: every device has a way to its host and back"
    return replace(fleet, warnings=(*fleet.warnings, unused))


def _encode(wanted: Wanted, model: Model) -> tuple[int, ...] | None:
    """The prompt as ids, BOS first. None where only a count is known."""
    if wanted.prompt_ids is not None:
        return given_ids(wanted, model)
    if wanted.prompt_tokens is not None or model.unknown:
        if wanted.prompt is not None and wanted.prompt_tokens is not None:
            raise DescriptionError.at(wanted.source, "prompt_tokens", "give a prompt or a count of tokens, not both")
        return None
    if wanted.prompt is None and wanted.tokenizer is None:
        return (1,) if model.recipe is None else None  # BOS is 1 in llama2.c's vocabularies alone
    if model.recipe is not None and wanted.tokenizer is not None:
        return ids_of_words(wanted, model)
    if model.format in ("hf-config", "safetensors", "gguf"):
        kind = "a config.json" if model.format == "hf-config" else f"a {model.format} file"
        words = f"{kind} comes without a tokenizer that is read here; give --prompt-tokens N or --prompt-ids"
        raise DescriptionError.at(wanted.source, "prompt", words)
    from executor.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(wanted.tokenizer, model.vocab_size, model.path or model.name)
    try:
        return tuple(tokenizer.encode(wanted.prompt or ""))
    except DescriptionError as error:
        # The encoder does not know where its text came from.
        faults = [replace(f, source=wanted.source, field="prompt") if f.source == "prompt" else f for f in error.faults]
        raise DescriptionError(faults) from error


def _request(wanted: Wanted, prompt_ids: tuple[int, ...] | None, defaults: list[str]) -> Request:
    if wanted.prompt is None and wanted.prompt_tokens is None and wanted.prompt_ids is None:
        defaults.append("prompt: empty, BOS alone (P = 1)")
    steps = wanted.steps
    if wanted.steps is None and wanted.new_tokens is None:
        if wanted.positions is not None and 0 < wanted.positions < DEFAULT_STEPS:
            steps = wanted.positions
            defaults.append(f"steps: {steps}, as many as the cache holds")
        else:
            defaults.append(f"steps: {DEFAULT_STEPS}, cut to the model's seq_len (llama2.c's default)")
    if wanted.temperature:
        if wanted.top_p is None:
            defaults.append(f"top-p: {DEFAULT_TOP_P} (llama2.c's default)")
        if wanted.seed is None:
            defaults.append(f"seed: {DEFAULT_SEED} (equal words give equal tokens)")
    return Request(
        prompt_ids=prompt_ids,
        prompt_tokens=wanted.prompt_tokens,
        steps=steps,
        new_tokens=wanted.new_tokens,
        positions=wanted.positions,
        batch=1 if wanted.batch is None else wanted.batch,
        attention=wanted.attention or "device",
        kv_extent=_extent(wanted),
        kv_dtype=wanted.kv_dtype,
        weights_dtype=wanted.weights_dtype,
        prefill_chunk=1 if wanted.prefill_chunk is None else wanted.prefill_chunk,
        layout=wanted.layout or "plain",
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        seed=wanted.seed,
        engine=wanted.engine,
        engine_version=wanted.engine_version,
        prefix_hit=wanted.prefix_hit or 0,
        host_buffer=wanted.kv_buffer == "host",
        unit_tokens=wanted.block_size,
        unpriced=wanted.unpriced,
    )


def _extent(wanted: Wanted) -> str:
    """What the handoff moves: as asked, or whole units of an engine. Raises DescriptionError where both are said."""
    faults = []
    if wanted.engine is not None and wanted.engine not in ENGINES:
        faults.append(("engine", f"{wanted.engine!r} is unknown; use {', '.join(ENGINES)}"))
    elif wanted.engine is not None and wanted.kv_extent is not None:
        faults.append(("engine", f"{wanted.engine} sets what is moved, and kv_extent does; keep one"))
    if wanted.engine is None and wanted.engine_version is not None:
        faults.append(("engine_version", "is of an engine; give --engine"))
    if wanted.engine_version is not None and len(wanted.engine_version) > MAX_VERSION:
        faults.append(("engine_version", f"is longer than {MAX_VERSION} characters"))
    if wanted.kv_buffer not in (None, "device", "host"):
        faults.append(("kv_buffer", f"{wanted.kv_buffer!r} is unknown; use device or host"))
    if wanted.block_size is not None and not 1 <= wanted.block_size <= MAX_COUNT:
        faults.append(("block_size", f"{wanted.block_size} is out of range; use 1 or more"))
    if wanted.block_size is not None and wanted.kv_extent is not None:
        faults.append(("block_size", "and kv_extent exclude each other; keep one"))
    if faults:
        raise DescriptionError([Fault(source=wanted.source, field=field, message=words) for field, words in faults])
    if wanted.engine is not None:
        return engine_extent(wanted.engine, wanted.block_size)
    return wanted.kv_extent or ("filled" if wanted.block_size is None else f"blocks:{wanted.block_size}")


def _inputs(wanted: Wanted, ask: Ask) -> dict[str, Any]:
    """Names, paths as given and digests of all that the verdict depends on."""
    model, placement = ask.model, ask.placement
    where: dict[str, Any] = {"prefill": placement.prefill, "decode": placement.decode}
    if placement.is_split:
        where |= {"tp": [placement.tensor_parallel(p) for p in PHASES], "pp": list(placement.pp)}
    inputs: dict[str, Any] = {
        "scenario": wanted.name,
        "fleet": {"name": ask.fleet.name, "path": wanted.fleet, "digest": ask.fleet.digest}
        | ({} if wanted.sku is None else {"sku": wanted.sku})
        | ({"format": ask.fleet.format} if ask.fleet.format else {})
        | ({"assume_host_return": True} if wanted.assume_host_return else {}),
        "model": {
            "name": model.name,
            "path": wanted.model,
            "digest": model.digest,
            "family": model.family,
            "format": model.format,
            **({"mtp": True} if wanted.mtp else {}),
            **{name: _known(model, getattr(model, name)) for name in MODEL_SIZES},
            "weights_dtype": model.weights_dtype,
        },
        "tokenizer": {"path": wanted.tokenizer, "digest": tokenizer_digest(wanted.tokenizer)},
        "placement": where | {"digest": digest_of(where)},
        **_engine_inputs(wanted),
        "utilization": format_utilization(utilization_of(ask)),
        "reserve_bytes": ask.fleet.budget.reserve,
        **pricing_inputs(ask.pricing),
    }
    if not model.unknown:
        workload = resolve(ask.request, model, wanted.source)
        words = {
            "prompt_tokens": workload.prompt_tokens,
            "passes": workload.passes,
            "positions": workload.positions,
            "batch": workload.batch,
            "attention": workload.attention,
            "kv_extent": workload.kv_extent,
            "kv_dtype": workload.kv_dtype,
            "weights_dtype": workload.weights_dtype,
            "prefill_chunk": workload.prefill_chunk,
            "layout": workload.layout,
            **sampling_to_document(workload.sampling),
        }
        ids = None if workload.prompt_ids is None else list(workload.prompt_ids)
        inputs["workload"] = words | {"digest": digest_of(words | {"prompt_ids": ids})}
    return inputs


def _engine_inputs(wanted: Wanted) -> dict[str, Any]:
    """`engine`: what was asked of the transfer beyond the workload; absent where nothing was."""
    asked = {"name": wanted.engine, "version": wanted.engine_version, "prefix_hit_tokens": wanted.prefix_hit,
             "kv_buffer": wanted.kv_buffer}  # fmt: skip
    return {"engine": asked} if any(value is not None for value in asked.values()) else {}


def tokenizer_digest(path: str | None) -> str | None:
    """sha256 of a tokenizer file; None for the byte tokenizer, which has no file. DescriptionError where it cannot be
    read.
    """
    if path is None:
        return None
    from fleet.checkpoints.source import digest_file, open_regular

    handle, size = open_regular(path)
    with handle:
        return digest_file(handle, size, b"", path)


def _known(model: Model, size: int) -> int | None:
    """A size of a model; one that was not read from a model that is not understood is unknown, not 0."""
    return None if model.unknown and not size else size


def wanted_of(scenario: str | None, words: dict[str, Any]) -> Wanted:
    """The question of a scenario, or of the command line alone; `words` given there stand for the scenario's.

    A prompt in words stands for a count and the reverse; steps for new_tokens and the reverse; another prompt, model,
    tokenizer or way to choose ids drops the scenario's reference tokens, which were those of its own request. The
    temperature 0 drops the scenario's top-p and seed with its own.
    """
    words = ids_read(words)
    if scenario is None:
        return Wanted(**words, given=frozenset(words))
    from scenarios.scenario import load_scenario

    wanted = load_scenario(scenario)
    for given, replaced in _REPLACES.items():
        if given in words:
            cleared: dict[str, Any] = dict.fromkeys(replaced)
            wanted = replace(wanted, **cleared)
    if words.get("temperature") == 0:
        wanted = replace(wanted, top_p=None, seed=None)
    steps = words.get("steps")
    if wanted.expect is not None and steps:
        wanted = replace(wanted, expect=wanted.expect[: steps + 1])  # a shorter walk begins with the same ids
    return replace(wanted, **words, given=frozenset(words))


_REPLACES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt_tokens", "prompt_ids", "expect"),
    "prompt_ids": ("prompt_tokens", "prompt", "expect"),
    "prompt_tokens": ("prompt", "prompt_ids", "expect"),
    "steps": ("new_tokens",),
    "new_tokens": ("steps",),
    "model": ("expect",),
    "tokenizer": ("expect",),
    "block_size": ("kv_extent",),
    "engine": ("kv_extent",),
    "kv_extent": ("block_size", "engine"),
    "temperature": ("expect",),
    "top_p": ("expect",),
    "seed": ("expect",),
}
