"""A weight may be a NaN that looks like poison: the witness must not take it for one."""

from __future__ import annotations

import numpy as np

from executor.arena import poison_word
from executor.run import Executor
from executor.weights import Weights
from tests.executor.requests import embedded, orders_for


def with_word(word: int) -> Weights:
    """The embedded weights with one value of w1 replaced by this pattern."""
    honest = embedded()
    tensors = {spec.name: np.array(honest.tensor(spec.name)) for spec in honest.model.tensors}
    tensors["w1"].view(np.uint32)[0, 0, 0] = word
    return Weights(honest.model, tensors)


def test_a_weight_that_equals_the_poison_is_still_seen_to_arrive() -> None:
    weights = with_word(poison_word("gpu:1", 1))
    with Executor(orders_for(weights.model), weights) as executor:
        facts = executor.run()
    assert facts.observed is not None
    staged = {key[3]: nbytes for key, nbytes in facts.observed.items() if key[0] == "stage"}
    total = sum(spec.nbytes for spec in weights.model.tensors)
    assert staged == {"gpu:0": total, "gpu:1": total}


def test_finite_weights_cannot_equal_a_poison() -> None:
    weights = embedded()
    assert not weights.holds_nan
    assert not weights.contains_word(poison_word("gpu:0", 1))
