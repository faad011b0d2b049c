"""How full and equal sequences of real texts become: the sources of Python's standard library."""

import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from dataloader_balancers import LlmCost
from dataloader_balancers.pack import level, pack

COST = LlmCost.preset("7b")
STEP = 2**21  # tokens


@pytest.fixture(scope="module")
def texts():
    """Tokens (words, marks, line beginnings) of each file: a few to over 100,000."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    token = re.compile(r"\w+|[^\w\s]|\n[ \t]*")
    lengths = np.array([len(token.findall(path.read_text(errors="replace"))) for path in files])
    lengths = lengths[lengths > 0]
    assert len(lengths) > 500
    assert lengths.min() < 50
    return lengths


def step(texts, longest, tokens, seed):
    """Pieces of documents that are drawn with replacement and cut, until there are `tokens`."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(texts, 8 * STEP // int(texts.mean()))
    parts = [[longest] * (n // longest) + [n % longest] * (n % longest > 0) for n in drawn.tolist()]
    pieces = rng.permutation([part for document in parts for part in document])
    enough = int(np.searchsorted(np.cumsum(pieces), tokens)) + 1
    assert enough < len(pieces)
    return pieces[:enough]


@pytest.mark.parametrize("sequence", [4096, 8192, 32_768])
def test_balanced_sequences_are_full_and_no_dearer_than_they_must(texts, sequence):
    count = STEP // sequence
    for seed in range(3):
        pieces = step(texts, sequence, 1.02 * STEP, seed)
        costs = COST.of_documents(pieces)
        made = level(pieces, pack("balanced", pieces, count, sequence, costs=costs), count, sequence, costs)
        fullest = level(pieces, pack("best_fit", pieces, count, sequence), count, sequence, costs)
        assert made.fill >= 0.99
        assert made.gap <= 0.001
        assert made.range <= fullest.range
        if sequence == 32_768:
            assert made.range <= 0.95 * fullest.range


@pytest.mark.parametrize("sequence", [4096, 8192, 32_768])
def test_sequences_of_unequal_length_are_equal_work(texts, sequence):
    count = STEP // sequence
    for seed in range(3):
        pieces = step(texts, sequence, STEP, seed)
        costs = COST.of_documents(pieces)
        result = pack("variable", pieces, count, sequence * 5 // 4, costs=costs)
        assert result.min() >= 0
        made = level(pieces, result, count, sequence, costs)
        assert made.spread <= max(1.05, made.floor * 1.001)
