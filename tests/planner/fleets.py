"""Fleets and models made in memory for the planner's tests."""

from __future__ import annotations

from fleet.machine import Budget, Device, Figure, Fleet, Host, Link, Memory, Quantity
from fleet.model import Model, TensorSpec

GB = 10**9
MIB = 2**20


def known(value: int) -> Quantity:
    """A declared figure."""
    return Quantity(declared=Figure(value=value, provenance="spec", source="test"))


def device(
    name: str, *, capacity: int | None = 80 * 2**30, granule: int = 2 * MIB, runtime: int = 0, topology_id: int = 500
) -> Device:
    """A device with one memory."""
    memory = Memory(
        name="HBM", capacity=known(capacity) if capacity is not None else Quantity(), granule=known(granule)
    )
    return Device(
        id=name,
        kind="cpu" if name.startswith("cpu") else "gpu",
        index=int(name.rpartition(":")[2]),
        topology_id=topology_id,
        memories=(memory,),
        default_memory="HBM",
        runtime=known(runtime),
        capacity_field=f"devices[{name}].memories[0].capacity",
        where="test.yaml:1",
    )


def host_links(name: str) -> list[Link]:
    """Both host links of a device."""
    return [
        Link(src="host", dst=name, kind="pcie", bandwidth=known(50 * GB), latency=known(10**6)),
        Link(src=name, dst="host", kind="pcie", bandwidth=known(50 * GB), latency=known(10**6)),
    ]


def pair(
    peer_access: str = "direct",
    *,
    capacity: int | None = 80 * 2**30,
    decode_capacity: int | None = None,
    granule: int = 2 * MIB,
    runtime: int = 0,
    pool: int | None = None,
    budget: Budget | None = None,
    drop: tuple[str, str] | None = None,
) -> Fleet:
    """gpu:0 and gpu:1 with host links and peer links. `drop` leaves one directed link out."""
    second = capacity if decode_capacity is None else decode_capacity
    links = [*host_links("gpu:0"), *host_links("gpu:1")]
    for src, dst in (("gpu:0", "gpu:1"), ("gpu:1", "gpu:0")):
        links.append(
            Link(
                src=src,
                dst=dst,
                kind="nvlink",
                bandwidth=known(450 * GB),
                latency=known(2 * 10**6),
                peer_access=peer_access,  # type: ignore[arg-type]  # the words come from the tests' tables
            )
        )
    return Fleet(
        name="pair",
        hosts=(Host(id="host", pinned_pool=known(pool) if pool is not None else Quantity()),),
        devices=(
            device("gpu:0", capacity=capacity, granule=granule, runtime=runtime, topology_id=500),
            device("gpu:1", capacity=second, granule=granule, runtime=runtime, topology_id=501),
        ),
        links=tuple(link for link in links if (link.src, link.dst) != drop),
        budget=budget or Budget(),
    )


def llama2c(
    dim: int = 64,
    hidden: int = 172,
    layers: int = 5,
    heads: int = 8,
    kv_heads: int = 4,
    vocab: int = 512,
    seq_len: int = 512,
    *,
    shared: bool = True,
) -> Model:
    """A llama2.c model of these dimensions; the defaults are stories260K's."""
    head = dim // heads
    kv = kv_heads * head
    tensors = [
        TensorSpec(name="token_embedding", shape=(vocab, dim), role="embedding"),
        TensorSpec(name="rms_att", shape=(layers, dim), role="norm"),
        TensorSpec(name="wq", shape=(layers, dim, dim), role="projection"),
        TensorSpec(name="wk", shape=(layers, kv, dim), role="projection"),
        TensorSpec(name="wv", shape=(layers, kv, dim), role="projection"),
        TensorSpec(name="wo", shape=(layers, dim, dim), role="projection"),
        TensorSpec(name="rms_ffn", shape=(layers, dim), role="norm"),
        TensorSpec(name="w1", shape=(layers, hidden, dim), role="projection"),
        TensorSpec(name="w2", shape=(layers, dim, hidden), role="projection"),
        TensorSpec(name="w3", shape=(layers, hidden, dim), role="projection"),
        TensorSpec(name="rms_final", shape=(dim,), role="norm"),
        TensorSpec(name="freq_cis_real", shape=(seq_len, head // 2), role="unread"),
        TensorSpec(name="freq_cis_imag", shape=(seq_len, head // 2), role="unread"),
    ]
    if not shared:
        tensors.append(TensorSpec(name="wcls", shape=(vocab, dim), role="classifier"))
    return Model(
        name="made",
        family="llama",
        format="llama2c-v0",
        dim=dim,
        hidden_dim=hidden,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head,
        vocab_size=vocab,
        seq_len=seq_len,
        shared_classifier=shared,
        tensors=tuple(tensors),
    )
