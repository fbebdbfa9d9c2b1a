"""plan -> run -> comparison. The one path that `run` and `prove` take.

Only an admitted plan can be run. The executor is handed the plan's orders and nothing else of it; the prediction is
read again after the run, by `compare`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fleet.checkpoints import SEEDED_NAME, load_model
from fleet.checkpoints.hub_cache import is_model_id
from fleet.checkpoints.shipped import shipped_model_file
from fleet.errors import DescriptionError, DeviceMemoryError, Fault, InconclusiveError
from fleet.model import Model
from planner.orders import OrderedWorkload, Orders
from scenarios.beside_strict import beside_strict
from scenarios.compare import compare
from scenarios.compute_dtype import check_compute_devices, check_compute_dtype, narrow_words
from scenarios.documents import digest_of, orders_from_document
from scenarios.limits import run_limits, witnesses_of
from scenarios.schemas import MODEL_SIZES
from scenarios.stored_request import Speaks, spoken_by, stored_faults, stored_words, with_prompt_ids

if TYPE_CHECKING:
    from executor.device import Backend
    from executor.hands import Hands
    from executor.run import Loss, Path
    from executor.weights import Weights

Document = dict[str, Any]
Memory = Literal["poisoned", "zeroed"]
EXECUTED_DTYPE = "fp32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """An admitted plan with its files open: what every run of it needs."""

    plan: Document
    orders: Orders
    model: Model
    weights: Weights
    tokenizer: Speaks | None
    backend: str | type[Backend]
    path: Path | None = None
    tell: Callable[[str], None] | None = None
    fast: bool = False
    threads: int = 1
    compute_dtype: str = EXECUTED_DTYPE
    warnings: tuple[str, ...] = ()


def set_up(
    plan: Document,
    *,
    backend: str = "numba",
    emulate: bool = False,
    path: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    fleet: str | None = None,
    prompt: str | None = None,
    prompt_ids: tuple[int, ...] | None = None,
    tell: Callable[[str], None] | None = None,
    fast: bool = False,
    threads: int = 1,
    compute_dtype: str = EXECUTED_DTYPE,
) -> Bench:
    """Opens the checkpoint and the tokenizer of an admitted plan; paths given here stand for the plan's own.

    Raises DescriptionError when a file is not the one that the plan was made for, and says in words what the executor
    cannot do. `prompt` must come to exactly P tokens. `path`: fused, dispatch, or None for the executor's choice.
    `tell` hears what takes a while before the first run. `fast` and `threads`: see `executor.run.Executor`.
    `compute_dtype`: the type in which cards read weights.
    """
    from executor.discovery import load_backend
    from executor.run import check_pace, chosen_path
    from executor.weights import open_weights

    if plan.get("not_run"):
        told = "; ".join(str(words) for words in plan["not_run"])
        raise DescriptionError.at("run", "plan", f"cannot be run, though it is priced: {told}")
    orders = orders_from_document(plan["orders"])
    inputs = plan["inputs"]
    early = _early(inputs, model, tokenizer)
    check_compute_dtype(compute_dtype, backend, fast)
    how = _check_executable(orders, backend, path, None if early is None else early.weights_dtype)
    loaded = _computing(_emulating(backend) if emulate else load_backend(backend), compute_dtype)
    check_pace(orders, chosen_path(orders, loaded, how), fast, threads)
    check_compute_devices(compute_dtype, orders)
    _check_there({} if model else {"model": inputs["model"]["path"]}, tokenizer, inputs)
    if fleet is not None:
        _check_fleet(fleet, inputs)
    checkpoint = model or inputs["model"]["path"]
    read = early or load_model(checkpoint)
    _check_digest(read, checkpoint, inputs)
    if read.format in _WITHOUT_WEIGHTS and read.read is None:
        raise _no_weights({"path": checkpoint, "name": read.name, "format": read.format})
    if false := [size for size in MODEL_SIZES if inputs["model"].get(size) != getattr(read, size)]:
        told = "does not fit the checkpoint of the same digest: the plan was edited by hand; admit again"
        raise DescriptionError([Fault(source="plan", field=f"inputs.model.{size}", message=told) for size in false])
    words = tokenizer or inputs["tokenizer"]["path"]
    _check_tokenizer(words, inputs["tokenizer"]["digest"], read)
    if prompt_ids is not None:
        orders = with_prompt_ids(orders, prompt_ids, prompt)
    spoken = spoken_by(read, words, prompt, knows_ids=orders.workload.prompt_ids is not None)
    orders = _with_prompt(orders, spoken, prompt)
    weights = open_weights(read)
    return Bench(
        plan=plan, orders=orders, model=read, weights=weights, tokenizer=spoken, backend=loaded, path=how, tell=tell,
        fast=fast, threads=threads, compute_dtype=compute_dtype,
        warnings=(*read.warnings, *(read.recipe.notes if read.recipe else ()), *weights.check()),
    )  # fmt: skip


_WITHOUT_WEIGHTS = {
    "hf-config": "holds no weights: a config.json can be admitted, not run; give the folder with its safetensors",
    "safetensors": "has weights that are not executed: safetensors alone can be admitted, not run; add its config.json",
    "gguf": "has weights that are not executed: GGUF can be admitted, not run",
}


def _check_digest(read: Model, path: str | None, inputs: Document) -> None:
    if read.digest != inputs["model"]["digest"]:
        told = "is another checkpoint than the plan was made for (digests differ); admit again"
        raise DescriptionError.at(path or read.name, "model", told)


def _early(inputs: Document, given: str | None, tokenizer: str | None) -> Model | None:
    """The model of a folder with its config, whose types the checks below need; None for llama2.c's formats.

    Raises DescriptionError where there is nothing to run: told before what the executor cannot compute.
    """
    named = inputs["model"]
    form, where = named.get("format"), given or named["path"]
    if form not in _WITHOUT_WEIGHTS:
        return None
    if form != "hf-config":
        raise _no_weights(named)
    _check_there({} if given else {"model": where}, tokenizer, inputs)
    read = load_model(where)
    if read.recipe is not None and read.read is None:
        raise _no_weights(named | {"path": where})
    _check_digest(read, where, inputs)
    return read


def _no_weights(model: Document) -> DescriptionError:
    """No other flag would mend it."""
    where = model["path"] or model["name"]
    return DescriptionError.at(where, "model", _WITHOUT_WEIGHTS[model["format"]])


def _check_there(paths: dict[str, str | None], tokenizer: str | None, inputs: Document) -> None:
    """The files of a plan, both at once: it names them as they were given, perhaps from another folder."""
    if tokenizer is None:
        paths = paths | {"tokenizer": inputs["tokenizer"]["path"]}
    named = {name: path for name, path in paths.items() if path and not (name == "model" and _comes_along(path))}
    if inputs["model"].get("format") == "hf-config" and is_model_id(named.get("model", "")):
        named.pop("model")  # looked for in the local cache, not as a path
    gone = {name: path for name, path in named.items() if "\0" not in path and not os.path.exists(path)}
    if gone:
        words = "is not there (a plan names its files as they were given to admit); say where it is with"
        raise DescriptionError(
            [Fault(source=path, field=name, message=f"{words} --{name} PATH") for name, path in gone.items()]
        )


def _comes_along(model: str) -> bool:
    return model == SEEDED_NAME or shipped_model_file(model) is not None


def _check_tokenizer(path: str | None, planned: str | None, model: Model) -> None:
    """The prompt's ids mean something in the plan's tokenizer only. A plan made without one, from a count of tokens,
    takes any that fits the model; the embedded model's is the byte tokenizer and no file.
    """
    from scenarios.wanted import tokenizer_digest

    if planned is None and model.format != "seeded":
        return
    if tokenizer_digest(path) != planned:
        told = path or "the byte tokenizer"
        raise DescriptionError.at(
            told, "tokenizer", "is another tokenizer than the plan was made with (digests differ); admit again with it"
        )


def _check_fleet(path: str, inputs: Document) -> None:
    from fleet.host_return import assume_host_return
    from fleet.load import load_fleet

    fleet = load_fleet(path, sku=inputs["fleet"].get("sku"))
    if inputs["fleet"].get("assume_host_return") is True:
        fleet = assume_host_return(fleet)
    if fleet.digest != inputs["fleet"]["digest"]:
        raise DescriptionError.at(path, "fleet", "is not the fleet that the plan was made for; admit again")


def _check_executable(orders: Orders, backend: str, path: str | None, stored: str | None = None) -> Path | None:
    """What admission may price and the executor does not compute, all at once and in words; gives the path checked.

    `stored`: the type of the weights of a checkpoint that has types of its own (see `executor.check_stored`).
    """
    from executor.discovery import find_backends, load_backend, probe
    from executor.run import PATHS, chosen_path

    work = orders.workload
    faults = []
    if work.batch > 1:
        faults.append(f"batch {work.batch}: the executor runs one sequence; admit with --batch 1 to run it")
    for what, dtype in (("weights", work.weights_dtype), ("kv", work.kv_dtype)):
        if stored is None and dtype != EXECUTED_DTYPE:
            faults.append(
                f"{what} in {dtype}: the executor computes in {EXECUTED_DTYPE}; admit with --{what}-dtype fp32"
            )
    if stored is not None:
        faults += stored_faults(work.weights_dtype, work.kv_dtype, stored)
    if faults:
        raise DescriptionError.at("run", "orders", "cannot be run, though they can be priced: " + "; ".join(faults))
    if backend not in find_backends():
        known = ", ".join(name for name in find_backends() if name != "null")
        raise DescriptionError.at("run", "backend", f"{backend!r} is unknown; use {known}")
    answer = probe(backend)
    if isinstance(answer, str):
        raise InconclusiveError(f"backend {backend} cannot run here: {answer}")
    how = next((known for known in PATHS if known == path), None)
    if path is not None and how is None:
        raise DescriptionError.at("run", "path", f"{path!r} is unknown; use {' or '.join(PATHS)}")
    chosen_path(orders, load_backend(backend), how)
    return how


def _emulating(backend: str) -> type[Backend]:
    """The backend with one card allowed to play several devices. DescriptionError where it has no such thing."""
    from executor.discovery import load_backend

    made: Any = load_backend(backend)
    if not hasattr(made, "emulating"):
        raise DescriptionError.at("run", "emulate", f"backend {backend} emulates GPUs always; leave --emulate out")
    emulating: type[Backend] = made.emulating()
    return emulating


def _exactly(work: OrderedWorkload) -> str:
    return f"a --prompt of exactly {work.prompt_tokens} tokens, or as many --prompt-ids"


def _with_prompt(orders: Orders, tokenizer: Speaks | None, prompt: str | None) -> Orders:
    work = orders.workload
    if prompt is None:
        if work.prompt_ids is None:
            raise DescriptionError.at("run", "prompt", f"the plan knows only a count; give {_exactly(work)}")
        return orders
    assert tokenizer is not None
    try:
        ids = tuple(tokenizer.encode(prompt))
    except DescriptionError as error:
        faults = [
            replace(f, source="command line", field="--prompt") if f.source == "prompt" else f for f in error.faults
        ]
        raise DescriptionError(faults) from error
    if len(ids) != work.prompt_tokens:
        raise DescriptionError.at(
            "command line",
            "--prompt",
            f"has {len(ids)} tokens, the plan is for exactly {work.prompt_tokens}; admit again",
        )
    return replace(orders, workload=replace(work, prompt_ids=ids), expect=None)


def execute(
    bench: Bench,
    *,
    hands: Hands | None = None,
    without: Collection[str] = (),
    memory: Memory = "poisoned",
    lose: Loss | None = None,
) -> Document:
    """One request as the contract's **run**, still without its comparison."""
    from executor.facts import run_document
    from executor.run import Executor

    options: dict[str, Any] = {"hands": hands, "without": without, "memory": memory, "lose": lose, "path": bench.path}
    options |= {"tell": bench.tell, "fast": bench.fast, "threads": bench.threads}
    try:
        with Executor(bench.orders, bench.weights, bench.backend, **options) as executor:
            facts = executor.run()
    except DeviceMemoryError as error:
        raise InconclusiveError(f"{error}; {_line_that_no_longer_fits(bench.plan, error)}") from error
    return told(bench, run_document(facts, plan_id=bench.plan["id"]))


def _line_that_no_longer_fits(plan: Document, error: DeviceMemoryError) -> str:
    """Which line of the plan is the first to pass what was free, in the ledger's order, and how to learn what fits."""
    left = error.free_bytes
    for entry in plan["memory"]:
        if entry["device"] != error.device:
            continue
        for name, nbytes in [*entry["resident"].items(), ("rounding", entry["rounding_bytes"])]:
            left -= 0 if name == "runtime" else nbytes
            if left < 0:
                return (
                    f"the line that no longer fits is {name} ({nbytes:,} B, short by {-left:,} B); "
                    "what fits beside what is in use: admit again with --in-use FILE of nvidia-smi"
                )
    return "all lines of the plan would fit: the driver keeps memory for itself; admit again with a lower --utilization"


def told(bench: Bench, run: Document) -> Document:
    """The run with its text and limits: what the executor cannot know."""
    text = None if bench.tokenizer is None else bench.tokenizer.decode(run["tokens"])
    run["inputs"] = _inputs(bench)
    run["text"] = None if text is None else text.decode("utf-8", errors="replace")
    run["text_hex"] = None if text is None else text.hex()
    run["edges"] = [edge | _observed(run, edge) for edge in run["edges"]]
    run["defaults"] = list(bench.plan.get("defaults") or [])
    run["warnings"] = list(bench.warnings)
    run["limits"] = run_limits(bench.orders.workload.attention, run["tier"], witnesses_of(run))
    if why := (run.get("driver") or {}).get("why_not"):
        run["limits"].append(f"The driver's own witness did not look: {why}.")
    if bench.model.recipe is not None:
        run["limits"][0] = stored_words(bench.orders.workload.kv_dtype)
    if bench.fast:
        run["limits"].append(_FAST)
    if bench.compute_dtype != EXECUTED_DTYPE:
        run["limits"].append(narrow_words(bench.compute_dtype))
    return run


_FAST = (
    "fast: multiplies are fused with adds and exp is another one, so the bits of the logits are not those of a strict"
    " run; its tokens are compared, its logits only reported."
)


def _inputs(bench: Bench) -> Document:
    """What the run was made with: the plan's names, words and digests less its paths; the request as it was run."""
    inputs = bench.plan["inputs"]
    found = {
        name: {key: value for key, value in (inputs.get(name) or {}).items() if key != "path"}
        for name in ("model", "fleet", "placement", "workload")
    }
    ids = bench.orders.workload.prompt_ids
    if ids != tuple(bench.plan["orders"]["workload"]["prompt_ids"] or ()):  # a prompt given anew is another request
        words = {key: value for key, value in found["workload"].items() if key != "digest"}
        asked = words | {"prompt_ids": None if ids is None else list(ids)}
        found["workload"] = words | {"digest": digest_of(asked)}
    return found


def _observed(run: Document, edge: Document) -> Document:
    """What a witness saw of an edge: the sum over its legs, null as soon as one of them was seen by nobody."""
    ends = ("src", "dst", "kind")
    legs = [leg for row in run["waybill"] for leg in row["legs"] if all(leg[end] == edge[end] for end in ends)]
    seen = [leg["observed_bytes"] for leg in legs]
    witnesses = {leg["witness"] for leg in legs}
    whole = bool(legs) and None not in seen
    return {
        "observed_bytes": sum(seen) if whole else None,
        "witness": witnesses.pop() if whole and len(witnesses) == 1 else "none",
    }


def run_and_compare(bench: Bench, *, without: Collection[str] = ()) -> Document:
    """One request with its comparison against the plan; of a fast one, the strict run is made beside it."""
    run = execute(bench, without=without)
    if bench.fast or bench.compute_dtype != EXECUTED_DTYPE:
        run["beside_strict"] = beside_strict(run, execute(strict_of(bench), without=without))
    run["comparison"] = compare(plan_for(bench), run)
    return run


def strict_of(bench: Bench) -> Bench:
    """The same with strict f32 arithmetic."""
    return replace(bench, fast=False, compute_dtype=EXECUTED_DTYPE, backend=_computing(bench.backend, EXECUTED_DTYPE))


def _computing(backend: Any, dtype: str) -> Any:
    """The backend with weights in this type; itself where it has none but fp32."""
    return backend.computing(dtype) if hasattr(backend, "computing") else backend


def plan_for(bench: Bench) -> Document:
    """The plan as `compare` reads it: with the reference dropped where another prompt was given."""
    if bench.orders.expect is None and bench.plan["orders"].get("expect") is not None:
        return bench.plan | {"orders": bench.plan["orders"] | {"expect": None}}
    return bench.plan
