"""What a plan's parts on workers, transfers and launch lines may hold, as `scenarios.schemas` checks them."""

from __future__ import annotations

from scenarios.shapes import choice, flag, integer, listing, record, table, text

DEVICE_ID = r"[A-Za-z0-9._/:-]{1,64}"
MAX_ROWS = 100_000

_device = text(64, pattern=DEVICE_ID)
_words = listing(text(100_000), most=10_000)
_figure = integer(null=True)

_rank = record(
    {
        "device": _device,
        "stage": integer(),
        "rank": integer(),
        "layers": record({"first": integer(), "end": integer()}),
        "kv_heads": listing(integer(), most=MAX_ROWS),
        "weights_bytes": integer(),
    }
)
WORKER = record(
    {
        "tensor_parallel": integer(1),
        "pipeline": integer(1),
        "copies": table(integer(1), most=64),
        "ranks": listing(_rank, least=1, most=MAX_ROWS),
    }
)


ENGINE_INPUTS = record(
    {
        "name": text(64, null=True),
        "version": text(256, null=True),
        "prefix_hit_tokens": integer(null=True),
        "kv_buffer": text(16, null=True),
    }
)
_range = record({"least": _figure, "most": _figure}, {"origin": text(128)})
LAUNCH = record(
    {
        "line": integer(),
        "server": text(16),
        "role": text(16, null=True),
        "model": text(4096),
        "available_bytes": _range,
        "request_tokens": integer(),
        "block_tokens": integer(1),
        "pool_tokens": _range,
        "max_concurrency": record({"least": text(64, null=True), "most": text(64, null=True)}),
        "prints": _words,
        "unknown": _words,
    }
)
TRANSFER = record(
    {
        "engine": text(64, null=True),
        "version": text(256, null=True),
        "direction": text(16),
        "unit": text(16),
        **dict.fromkeys(
            ("prompt_tokens", "prefix_hit_tokens", "asked_tokens", "unit_tokens", "units_of_prompt"), integer()
        ),
        "payload_bytes": integer(),
        "moved_bytes": integer(),
        "descriptors": _figure,
        "host_buffer": flag(),
        "in_flight": listing(
            record({"device": _device, "phase": choice("prefill", "decode"), "bytes": integer()}), most=MAX_ROWS
        ),
        "notes": _words,
    }
)
