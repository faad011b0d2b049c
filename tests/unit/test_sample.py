from __future__ import annotations

import numpy as np

from dataloader_svc.sample import BlockId, RowRef, SampleId, keyed_rng, keyed_share


def test_names_read_as_people_write_them() -> None:
    assert str(SampleId("web", 2, 17)) == "web/2/17"
    assert str(BlockId("web", 2, 3)) == "web/2#3"
    assert str(RowRef("a.parquet", 9)) == "a.parquet:9"


def test_keyed_randomness_depends_on_its_key_alone() -> None:
    np.random.seed(1)
    first = keyed_rng(17, "order", "web", 0).permutation(10)
    np.random.seed(2)
    assert np.array_equal(first, keyed_rng(17, "order", "web", 0).permutation(10))
    # Pinned: a change of these numbers is a change of sample order for every user.
    assert first.tolist() == PINNED
    for other in [(18, "order", "web", 0), (17, "order", "web", 1), (17, "order", "wea", 0)]:
        assert not np.array_equal(first, keyed_rng(*other).permutation(10))


PINNED = [2, 8, 1, 4, 6, 9, 0, 5, 3, 7]


def test_a_keyed_share_is_drawn_position_by_position() -> None:
    positions = np.arange(100_000)
    chosen = keyed_share(0.01, positions, 17, "web", 0)
    assert 850 < chosen.sum() < 1150
    assert np.array_equal(chosen[5000:6000], keyed_share(0.01, positions[5000:6000], 17, "web", 0))
    assert np.flatnonzero(chosen)[:3].tolist() == PINNED_SHARE
    for other in [(18, "web", 0), (17, "web", 1), (17, "wea", 0)]:
        assert not np.array_equal(chosen, keyed_share(0.01, positions, *other))
    assert keyed_share(1.0, positions, 17).all()
    assert not keyed_share(0.0, positions, 17).any()


PINNED_SHARE = [223, 224, 277]
