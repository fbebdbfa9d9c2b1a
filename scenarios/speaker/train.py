"""The recipe of the speaking model: `python -m scenarios.speaker.train OUT.bin`. Needs PyTorch (extra `[train]`).

A Llama of llama2.c's shape, trained on `scenarios.speaker.text` alone, from one seed, and written as a llama2.c
checkpoint of version 0 (classifier shared with the embedding). The shipped file was made on one H200 in about two
minutes; a CPU does the same in some hours. Other hardware or another PyTorch rounds otherwise and gives other bits:
the shipped file is told by its digest (`tests/scenarios/test_speaker.py`), and its conduct is what the tests check.
"""

from __future__ import annotations

import argparse
import math
import struct
import sys
from pathlib import Path
from random import Random
from typing import Any

from executor.tokenizer import BOS, BYTE_FALLBACK, BYTE_VOCABULARY
from fleet.checkpoints.llama2c import Dimensions, tensor_rows
from scenarios.speaker.text import MAX_NOTE_BYTES, note, opening, parcel

SEED = 20
STEPS = 3_000
BATCH = 256
NOTES = 200_000
PEAK_RATE = 4e-3
WARM_UP = 200
WEIGHT_DECAY = 0.05

SIZES = Dimensions(
    dim=64,
    hidden_dim=172,
    n_layers=5,
    n_heads=8,
    n_kv_heads=4,
    vocab_size=BYTE_VOCABULARY,
    seq_len=256,
    shared_classifier=True,
)

LENGTH = MAX_NOTE_BYTES + 2
"""Positions of a row: BOS and the dummy space before a note, the closing BOS after it, less the last position."""


def ids_of(text: str) -> list[int]:
    """The byte tokenizer's ids of a whole note, BOS first and last."""
    return [BOS, *(byte + BYTE_FALLBACK for byte in (" " + text).encode("ascii")), BOS]


def rows_of(torch: Any, notes: list[str]) -> Any:
    """[notes, LENGTH + 1] ids; what follows a note is -1 and neither read nor learned."""
    table = torch.full((len(notes), LENGTH + 1), -1, dtype=torch.int16)
    for row, text in enumerate(notes):
        ids = ids_of(text)
        table[row, : len(ids)] = torch.tensor(ids, dtype=torch.int16)
    return table


def first_weights(torch: Any, device: str) -> dict[str, Any]:
    """Named tensors of llama2.c's shapes: norms at 1, the rest normal, outputs of a layer scaled down by its depth."""
    made = torch.Generator(device="cpu").manual_seed(SEED)
    tensors = {}
    for name, shape, role, _ in tensor_rows(SIZES, 0):
        if role == "unread":
            continue
        if role == "norm":
            value = torch.ones(shape)
        else:
            scale = 0.02 if role == "embedding" else shape[-1] ** -0.5
            if name in ("wo", "w2"):
                scale /= math.sqrt(2 * SIZES.n_layers)
            value = torch.randn(shape, generator=made) * scale
        tensors[name] = value.to(device).requires_grad_()
    return tensors


def rotation(torch: Any, device: str) -> tuple[Any, Any]:
    """cos and sin [seq_len, head_dim / 2] of llama2.c's RoPE: base 10,000."""
    powers = torch.arange(0, SIZES.head_dim, 2, dtype=torch.float64) / SIZES.head_dim
    angles = torch.outer(torch.arange(SIZES.seq_len, dtype=torch.float64), 10_000.0**-powers)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def logits_of(torch: Any, tensors: dict[str, Any], ids: Any, table: tuple[Any, Any]) -> Any:
    """[batch, positions, vocabulary] of ids [batch, positions]: llama2.c's forward pass over all positions at once."""
    functional = torch.nn.functional
    batch, length = ids.shape
    cos, sin = (part[:length, None, :] for part in table)

    def norm(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    def heads(x: Any, count: int, turned: bool) -> Any:
        x = x.view(batch, length, count, SIZES.head_dim)
        if turned:
            even, odd = x[..., 0::2], x[..., 1::2]
            x = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
        x = x.repeat_interleave(SIZES.n_heads // count, 2) if count != SIZES.n_heads else x
        return x.transpose(1, 2)

    x = tensors["token_embedding"][ids]
    for layer in range(SIZES.n_layers):
        w = {name: tensor[layer] for name, tensor in tensors.items() if name not in ("token_embedding", "rms_final")}
        h = norm(x, w["rms_att"])
        mixed = functional.scaled_dot_product_attention(
            heads(h @ w["wq"].T, SIZES.n_heads, True),
            heads(h @ w["wk"].T, SIZES.n_kv_heads, True),
            heads(h @ w["wv"].T, SIZES.n_kv_heads, False),
            is_causal=True,
        )
        x = x + mixed.transpose(1, 2).reshape(batch, length, SIZES.dim) @ w["wo"].T
        h = norm(x, w["rms_ffn"])
        x = x + (functional.silu(h @ w["w1"].T) * (h @ w["w3"].T)) @ w["w2"].T
    return norm(x, tensors["rms_final"]) @ tensors["token_embedding"].T


def rate_at(step: int, steps: int) -> float:
    """Linear up, then a cosine down to a fiftieth."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return PEAK_RATE * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))


def train(torch: Any, device: str, steps: int, notes: int) -> dict[str, Any]:
    """The trained tensors. Progress goes to stderr, a line each fortieth of the way."""
    random = Random(SEED)
    table = rows_of(torch, [note(random) for _ in range(notes)]).to(device)
    picks = torch.Generator(device=device).manual_seed(SEED)
    tensors, turned = first_weights(torch, device), rotation(torch, device)
    matrices = [tensor for name, tensor in tensors.items() if not name.startswith("rms")]
    norms = [tensor for name, tensor in tensors.items() if name.startswith("rms")]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=device != "cpu")
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        rows = table[torch.randint(notes, (BATCH,), generator=picks, device=device)].long()
        logits = logits_of(torch, tensors, rows[:, :-1].clamp(min=0), turned)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(matrices + norms, 1.0)
        optimizer.step()
        if step % max(1, steps // 40) == 0 or step == steps - 1:
            sys.stderr.write(f"step {step:6}  loss {loss.item():.4f}\n")
    return tensors


def write_checkpoint(path: Path, tensors: dict[str, Any]) -> None:
    """llama2.c version 0: seven dimensions, then the tensors in order; freq_cis, which is never read, as zeros."""
    sizes = SIZES
    head = (
        sizes.dim,
        sizes.hidden_dim,
        sizes.n_layers,
        sizes.n_heads,
        sizes.n_kv_heads,
        sizes.vocab_size,
        sizes.seq_len,
    )
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as out:
        out.write(struct.pack("<7i", *head))
        for name, shape, role, _ in tensor_rows(sizes, 0):
            if role == "unread":
                out.write(bytes(4 * math.prod(shape)))
            else:
                out.write(tensors[name].detach().cpu().numpy().astype("<f4").tobytes())
    partial.replace(path)


def say(torch: Any, tensors: dict[str, Any], device: str, prompt: str) -> tuple[str, float]:
    """The greedy continuation of `prompt`, and the smallest distance of the two largest logits on the way."""
    ids, turned, least = ids_of(prompt)[:-1], rotation(torch, device), math.inf
    prompt_ids = len(ids)
    with torch.no_grad():
        while len(ids) < SIZES.seq_len:
            row = logits_of(torch, tensors, torch.tensor([ids], device=device), turned)[0, -1]
            best = row.topk(2)
            least = min(least, float(best.values[0] - best.values[1]))
            if int(best.indices[0]) == BOS:
                break
            ids.append(int(best.indices[0]))
    return bytes(token - BYTE_FALLBACK for token in ids[prompt_ids:] if token >= BYTE_FALLBACK).decode("latin-1"), least


def main() -> None:
    wanted = argparse.ArgumentParser(description="Train the speaking model from its seed and write it.")
    wanted.add_argument("out", type=Path, help="the checkpoint to write (llama2.c, version 0)")
    wanted.add_argument("--steps", type=int, default=STEPS)
    wanted.add_argument("--notes", type=int, default=NOTES, help="notes to draw before training")
    asked = wanted.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("training needs PyTorch: install kvwaybill[train]")
    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = train(torch, device, asked.steps, asked.notes)
    write_checkpoint(asked.out, tensors)
    fresh = Random(SEED + 1)
    for _ in range(6):
        prompt = opening(parcel(fresh))
        text, least = say(torch, tensors, device, prompt)
        sys.stderr.write(f"{prompt} |{text}  (least margin {least:.3f})\n")


if __name__ == "__main__":
    main()
