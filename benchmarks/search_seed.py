"""How the seed of the embedded model was found: run it again with `python benchmarks/search_seed.py [LAST_SEED]`.

Every seed from 1 on is judged on the shipped prompt: the smallest top-2 margin of all passes, the number of different
tokens chosen, and whether each kind of spoiled KV cache changes a token within 8 decode passes. The ten that meet all
of it with the largest margins are then judged on fifty other prompts. Of those that are clear on all fifty the one with
the most different tokens was taken: seed 33 of 400.
The scales in `fleet/checkpoints/seeded.py` were set by hand before: larger query and key scales make attention sharper
and tokens more varied, but rounding errors grow faster; at 0.375 sums in another order move a logit by about 1e-4.
"""

from __future__ import annotations

import sys

from executor.weights import generate
from fleet.checkpoints import seeded_model
from tests.seeded_probe import PROMPTS, SHIPPED_PASSES, SHIPPED_PROMPT, Probe, probe

MIN_DIFFERENT_TOKENS = 20


def judged(seed: int) -> Probe | None:
    """The probe of the shipped prompt, or None when `seed` fails a condition."""
    model = seeded_model()
    result = probe(model, generate(model, seed).__getitem__, SHIPPED_PROMPT, SHIPPED_PASSES, fast=True)
    chosen = result.clean.tokens[len(SHIPPED_PROMPT) + 2 :]
    good = (
        not result.clean.stopped_on_bos
        and result.min_margin > 1e-3
        and len(set(chosen)) >= MIN_DIFFERENT_TOKENS
        and all(change is not None for change in result.first_change.values())
    )
    return result if good else None


def other_prompts(seed: int) -> tuple[int, int]:
    """Of the fifty prompts: how many keep all margins above 1e-3, and how many change when the cache is zeroed."""
    model = seeded_model()
    tensors = generate(model, seed)
    clear = changed = 0
    for prompt in PROMPTS:
        passes = len(prompt.encode()) + 2 + 40
        result = probe(model, tensors.__getitem__, prompt, passes, fast=True, spoilers=("zeroed",))
        clear += result.min_margin > 1e-3
        changed += result.first_change["zeroed"] is not None
    return clear, changed


def main() -> None:
    last = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    found = {seed: result for seed in range(1, last + 1) if (result := judged(seed)) is not None}
    print(f"{len(found)} of {last} seeds meet every condition")
    print("seed  min margin  tokens  clear of 50  changed of 50")
    for seed in sorted(found, key=lambda s: -found[s].min_margin)[:10]:
        chosen = found[seed].clean.tokens[len(SHIPPED_PROMPT) + 2 :]
        clear, changed = other_prompts(seed)
        print(f"{seed:4}  {found[seed].min_margin:10.4f}  {len(set(chosen)):6}  {clear:11}  {changed:13}")


if __name__ == "__main__":
    main()
