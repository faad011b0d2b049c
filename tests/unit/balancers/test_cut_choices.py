"""Cuts of a whole step at once, beside `choose_cut`, which looks at every token of one sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers import Kernel, LlmCost, choose_cut, choose_cuts
from dataloader_balancers.cut_choices import NAMES

lengths = st.one_of(st.integers(0, 9), st.integers(0, 300), st.sampled_from([0, 1, 128, 256, 1024]))
COSTS = [LlmCost.preset("8b"), LlmCost(1.0, 0.5), LlmCost.preset("gpt-oss-20b")]  # the last has windows


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(lengths, max_size=5), max_size=5),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(COSTS),
    st.builds(Kernel, tile=st.sampled_from([1, 2, 7, 128]), per_run=st.sampled_from([0.0, 3.5, 1e3])),
)
def test_each_sequence_is_cut_as_by_itself(sequences, cp, padded, cost, kernel):
    """The same choice, and the same times to the last bit."""
    if padded:
        sequences = [[*lengths, -sum(lengths) % (2 * cp)] for lengths in sequences]
    found = choose_cuts(
        [length for lengths in sequences for length in lengths], list(map(len, sequences)), cp, cost, kernel
    )
    assert found.choice.shape == (len(sequences),)
    for at, lengths in enumerate(sequences):
        alone = choose_cut(np.cumsum([0, *lengths]), cp, cost, kernel)
        times = [alone.loads[name].dearest if name in alone.loads else np.inf for name in NAMES]
        assert found.time[:, at].tolist() == times
        assert NAMES[found.choice[at]] == alone.name
        assert found.dearest[at] == alone.load.dearest


def test_one_long_document_and_many_short_ones():
    """As WLB-LLM has it: by document where one is long, by sequence where all are short."""
    found = choose_cuts([60_000, 1000, 4536, *[128] * 64], [3, 64], 8, LlmCost.preset("8b"))
    assert [NAMES[choice] for choice in found.choice] == ["per_document", "per_sequence"]


def test_a_step_without_sequences_has_no_cuts():
    assert choose_cuts([], [], 4, LlmCost.preset("8b")).time.shape == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"documents": [2, 2]}, "4 documents in all, of 3"),
        ({"lengths": [4, -1, 3]}, "document 1 has -1 tokens"),
        ({"documents": [4, -1]}, "sequence 1 has -1 documents"),
        ({"lengths": [[4, 5, 3]]}, r"shape \(1, 3\)"),
        ({"cp": 0}, "cp is 0"),
        ({"kernel": Kernel(multiple=64)}, "multiple is 64; here only 1: use choose_cut"),
    ],
)
def test_what_is_impossible_is_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        choose_cuts(
            **{"lengths": [4, 5, 3], "documents": [1, 2], "cp": 2, "cost": LlmCost(1.0, 0.5)} | arguments
        )
