"""What every transform must do, whoever wrote it: the exam, for those of other packages too.

Subclass `TransformContract` with a fixture `entry`, the transform as the YAML has it, and, where rows must
look a certain way, with fixtures `columns` and `raw`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.per_source import BlockRows, Transform, make_transform
from dataloader_svc.transforms.vision import VisionRule

ROWS = 6


class TransformContract:
    """Run by pytest. A fixture `entry` gives the transform as the YAML has it: {name: options}."""

    @pytest.fixture
    def columns(self) -> dict[str, list[Any]]:
        """Role -> `ROWS` values."""
        return {"text": [f"text {number}" for number in range(ROWS)]}

    @pytest.fixture
    def raw(self) -> dict[str, list[Any]]:
        """Field -> `ROWS` values, of all that the transform looks at."""
        return {}

    @pytest.fixture
    def transform(self, entry: dict[str, Any], tmp_path: Path) -> Transform:
        made = make_transform(entry)
        made.prepare(tmp_path)
        return made

    def test_all_that_it_looks_at_is_named(self, transform: Transform, raw: dict[str, list[Any]]) -> None:
        assert set(transform.columns) == set(raw)

    def test_the_same_rows_give_the_same(
        self,
        entry: dict[str, Any],
        tmp_path: Path,
        columns: dict[str, list[Any]],
        raw: dict[str, list[Any]],
    ) -> None:
        results = []
        for _ in range(2):  # as two loaders would
            made = make_transform(entry)
            made.prepare(tmp_path)
            for _ in range(2):
                rows = BlockRows(ROWS, copy.deepcopy(columns), copy.deepcopy(raw))
                made.apply(rows)
                out = {row: (problem.reason, problem.detail) for row, problem in rows.out.items()}
                results.append((rows.columns, rows.raw, out))
        assert all(result == results[0] for result in results)
        assert all(len(values) == ROWS for values in results[0][0].values())
        assert set(results[0][2]) <= set(range(ROWS))

    def test_a_row_does_not_depend_on_its_neighbours(
        self, transform: Transform, columns: dict[str, list[Any]], raw: dict[str, list[Any]]
    ) -> None:
        whole = BlockRows(ROWS, copy.deepcopy(columns), copy.deepcopy(raw))
        transform.apply(whole)
        for row in range(ROWS):
            one = BlockRows(
                1,
                {role: [copy.deepcopy(values[row])] for role, values in columns.items()},
                {name: [copy.deepcopy(values[row])] for name, values in raw.items()},
            )
            transform.apply(one)
            assert (0 in one.out) == (row in whole.out)
            if 0 not in one.out:
                assert {role: values[0] for role, values in one.columns.items()} == {
                    role: values[row] for role, values in whole.columns.items()
                }

    def test_a_bad_row_stays_bad(
        self, transform: Transform, columns: dict[str, list[Any]], raw: dict[str, list[Any]]
    ) -> None:
        empty = {role: [None] * ROWS for role in columns}
        broken = BadSample(Reason.BAD_RECORD, "can't be parsed")
        rows = BlockRows(
            ROWS, empty, {name: [None] * ROWS for name in raw}, dict.fromkeys(range(ROWS), broken)
        )
        transform.apply(rows)
        assert set(rows.out.values()) == {broken}

    def test_what_is_kept_are_the_first_rows_of_extents(self, transform: Transform) -> None:
        counts = np.array([5, 1, 9, 3, 3, 40, 2], np.int64)
        kept = transform.keep(counts.copy(), "web")
        assert kept.shape == counts.shape
        assert ((kept >= 0) & (kept <= counts)).all()
        assert kept.any()
        np.testing.assert_array_equal(kept, transform.keep(counts.copy(), "web"))

    def test_patches_and_tokens_stay_what_the_job_says(self, transform: Transform) -> None:
        before = VisionRule()
        after = transform.vision(before)
        assert (after.patch, after.merge) == (before.patch, before.merge)
