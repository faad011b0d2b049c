"""What every rule for weights holds to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dataloader_client.adaptive import Bounds


def assert_within(
    bounds: Bounds, declared: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]
) -> None:
    assert sum(after.values()) == pytest.approx(1, abs=1e-9)
    for name, share in after.items():
        assert bounds.min_share - 1e-6 <= share <= bounds.max_share + 1e-6
        assert declared[name] / bounds.max_ratio - 1e-6 <= share
        assert share <= declared[name] * bounds.max_ratio + 1e-6
        assert abs(share - before[name]) <= bounds.max_change + 1e-6
