"""Each transform by itself: options, errors, and what it does to the rows of a block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.transforms.per_source import (
    FILTERED,
    BlockRows,
    PictureCrop,
    TransformError,
    columns_of,
    make_transform,
    make_transforms,
)
from dataloader_svc.transforms.vision import VisionRule


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Path]:
    """A file beside the YAML, whose functions a `map` names; what its import leaves is taken away."""
    path, before = tmp_path / "cleaning_of_test.py", list(sys.path)
    yield path
    sys.path[:] = before
    sys.modules.pop("cleaning_of_test", None)


def rows(texts: list[Any], **raw: list[Any]) -> BlockRows:
    return BlockRows(len(texts), {"text": list(texts)}, raw)


def mapped(module: Path, body: str, given: BlockRows, **options: Any) -> BlockRows:
    module.write_text(f"import os, sys\n\n\ndef change(row):\n    {body}\n")
    transform = make_transform({"map": {"function": "cleaning_of_test:change", **options}})
    transform.prepare(module.parent)
    transform.apply(given)
    return given


class TestMaking:
    @pytest.mark.parametrize(
        ("entry", "part"),
        [
            ({"filtr": "a > 1"}, "unknown transform 'filtr'; known: crop, filter, held_out, map"),
            ({"filtr": "a > 1"}, "did you mean 'filter'?"),
            (
                {"subset": {"fractoin": 0.1}},
                "unknown option 'fractoin'; known: fraction, seed; did you mean 'fr",
            ),
            ({"subset": 1.5}, "fraction: Input should be less than or equal to 1, found 1.5"),
            ({"subset": {}}, "fraction: Field required"),
            ({"max_samples": 0}, "rows: Input should be greater than 0"),
            ({"resize": 100}, "expected options"),
            ({"crop": {"height": 28, "width": 28, "at": "left"}}, "at: Input should be 'center' or 'random'"),
            ({"map": "no_colon"}, "expected MODULE:FUNCTION"),
            ({"filter": "a >"}, "no expression"),
            ({"frames": 8}, "no transform but a field of the source: video"),
            ({"chat_template": "x.jinja"}, "no transform but a field of the source"),
        ],
    )
    def test_errors_say_what_is_allowed(self, entry: dict[str, Any], part: str) -> None:
        with pytest.raises(ConfigError) as error:
            make_transform(entry)
        assert part in str(error.value)

    def test_the_error_of_a_list_names_the_entry(self) -> None:
        source = Source(format="jsonl", path="x", text="t", transforms=[{"max_samples": 3}, {"subset": 2}])
        with pytest.raises(TransformError) as error:
            make_transforms(source)
        assert error.value.place == ("transforms", 1, "subset")
        assert str(error.value).startswith("transforms.1.subset: fraction: ")

    def test_two_names_in_one_entry(self) -> None:
        with pytest.raises(ValueError, match=r"entry 0 must be one transform.*it names filter, map"):
            Source(format="jsonl", path="x", text="t", transforms=[{"filter": "a", "map": "b:c"}])

    def test_columns(self) -> None:
        listed = [{"filter": "a > 1 and b.c == 2"}, {"map": {"function": "m:f", "columns": ["a", "d"]}}]
        assert columns_of([make_transform(entry) for entry in listed]) == ("a", "b.c", "d")


class TestFilter:
    def test_kept_filtered_and_bad(self) -> None:
        given = rows(["one", "two", "three", "four"], w=[3, 1, None, "x"])
        make_transform({"filter": "w > 2"}).apply(given)
        assert given.out[1] == given.out[2] == FILTERED
        assert given.out[3].reason == Reason.WRONG_TYPE
        assert given.out[3].detail.startswith("filter: 'x' > 2")
        assert list(given.remaining()) == [0]

    def test_a_row_that_lacks_its_text_may_be_filtered_and_a_broken_one_not(self) -> None:
        given = rows([None, None, "x"], text=[None, None, "x"])
        given.out = {0: BadSample(Reason.MISSING_FIELD, "a"), 1: BadSample(Reason.BAD_RECORD, "b")}
        make_transform({"filter": "text is not None"}).apply(given)
        assert {row: problem.reason for row, problem in given.out.items()} == {
            0: Reason.FILTERED,
            1: Reason.BAD_RECORD,
        }

    def test_a_missing_field_that_the_filter_does_not_mind_stays_bad(self) -> None:
        given = rows([None], w=[3])
        given.out = {0: BadSample(Reason.MISSING_FIELD, "a")}
        make_transform({"filter": "w > 2"}).apply(given)
        assert given.out[0].reason == Reason.MISSING_FIELD


class TestMap:
    def test_changed_left_out_and_untouched(self, module: Path) -> None:
        body = 'return None if row["text"] == "b" else {"text": row["text"] * 2}'
        given = mapped(module, body, rows(["a", "b", "c"]))
        assert given.columns["text"] == ["aa", "b", "cc"]
        assert given.out == {1: FILTERED}

    def test_columns_are_given_and_can_be_changed_for_a_later_filter(self, module: Path) -> None:
        body = 'return {**row, "n": row["n"] + len(row["text"])}'
        given = mapped(module, body, rows(["a", "bb"], n=[1, 2]), columns=["n"])
        assert given.raw["n"] == [2, 4]
        make_transform({"filter": "n > 3"}).apply(given)
        assert given.out == {0: FILTERED}

    def test_rows_that_are_out_are_not_shown(self, module: Path) -> None:
        given = rows(["a", "b"])
        given.out = {0: BadSample(Reason.BAD_RECORD, "x")}
        assert mapped(module, "return {'text': 'seen'}", given).columns["text"] == ["a", "seen"]

    @pytest.mark.parametrize(
        ("body", "part"),
        [
            ("raise ValueError('no title')", "ValueError: no title (cleaning_of_test.py:6 in change)"),
            ("sys.exit(3)", "SystemExit: 3 (cleaning_of_test.py:6 in change)"),
            ("raise BaseException('all')", "BaseException: all"),
            ("raise GeneratorExit", "GeneratorExit"),
            ("raise MemoryError", "MemoryError"),
            ("return change(row)", "RecursionError"),
            ("return row['txt']", "KeyError: 'txt'"),
            (
                "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()",
                "E: (its text can't be had: Zero",
            ),
            ("raise ValueError('x' * 10**6)", "ValueError: xxx"),
            ("return 'text'", "returned str; it must return the dict, or None"),
            ("return [row]", "returned list"),
            ("return {'text': 3}", "returned int as 'text'; it was given str"),
            ("return {'text': None}", "returned NoneType as 'text'"),
            ("return {'txt': 'x'}", "returned 'txt'; fields: text; did you mean 'text'?"),
            ("return {3: 'x'}", "returned 3; fields: text"),
        ],
    )
    def test_whatever_it_does_is_one_bad_sample(self, module: Path, body: str, part: str) -> None:
        given = mapped(
            module, f"if row['text'] == 'b':\n        {body}\n    return row", rows(["a", "b", "c"])
        )
        assert list(given.out) == [1]
        assert given.out[1].reason == Reason.MAP_FAILED
        assert part in given.out[1].detail
        assert "cleaning_of_test:change" in given.out[1].detail
        assert len(given.out[1].detail) < 500

    def test_media_must_stay_bytes_and_paths(self, module: Path) -> None:
        given = BlockRows(2, {"text": ["a", "b"], "image": [[b"1"], [b"2"]]})
        body = "return {'image': [b'3', 'path.png'] if row['text'] == 'a' else [None]}"
        mapped(module, body, given)
        assert given.columns["image"][0] == [b"3", "path.png"]
        assert given.out[1].reason == Reason.MAP_FAILED

    def test_a_person_may_still_end_the_command(self, module: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            mapped(module, "raise KeyboardInterrupt", rows(["a"]))

    @pytest.mark.parametrize(
        ("content", "name", "part"),
        [
            ("", "nowhere_to_be_found:f", "nowhere_to_be_found can't be imported: ModuleNotFoundError"),
            (
                "import not_there_either",
                "cleaning_of_test:f",
                "ModuleNotFoundError: No module named 'not_there",
            ),
            ("def f(:", "cleaning_of_test:f", "SyntaxError"),
            ("raise SystemExit(2)", "cleaning_of_test:f", "can't be imported: SystemExit: 2"),
            ("def strip_html(row): ...", "cleaning_of_test:strip_htm", "did you mean 'strip_html'?"),
            ("f = 3", "cleaning_of_test:f", "has no function 'f'"),
        ],
    )
    def test_what_is_wrong_with_the_import(self, module: Path, content: str, name: str, part: str) -> None:
        module.write_text(content)
        with pytest.raises(ConfigError) as error:
            make_transform({"map": name}).prepare(module.parent)
        assert part in str(error.value)

    def test_a_file_beside_the_yaml_does_not_replace_an_installed_module(self, module: Path) -> None:
        (module.parent / "json.py").write_text("def dumps(row): return {'text': 'hijacked'}")
        transform = make_transform({"map": "json:dumps"})
        transform.prepare(module.parent)
        given = rows(["a"])
        transform.apply(given)
        assert given.out[0].reason == Reason.MAP_FAILED  # Python's own returns a string


COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=30).map(lambda n: np.array(n, np.int64))


class TestReducing:
    @given(COUNTS, st.integers(1, 2000))
    def test_max_samples_are_the_first(self, counts: np.ndarray, limit: int) -> None:
        kept = make_transform({"max_samples": limit}).keep(counts, "s")
        flat = np.concatenate([np.arange(n) < k for n, k in zip(counts, kept, strict=True)])
        assert flat.tolist() == [number < limit for number in range(int(counts.sum()))]

    @given(COUNTS, st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 3))
    def test_subset(self, counts: np.ndarray, one: float, other: float, seed: int) -> None:
        small, large = (
            make_transform({"subset": {"fraction": f, "seed": seed}}).keep(counts, "s")
            for f in sorted([one, other])
        )
        assert small.sum() == max(1, round(min(one, other) * counts.sum()))
        assert (small <= large).all()
        assert (large <= counts).all()
        assert ((small > 0) & (small < counts)).sum() <= 1  # one extent is cut, the others are whole

    @given(COUNTS, st.integers(0, 30), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
    def test_held_out(self, counts: np.ndarray, more: int, one: float, other: float) -> None:
        def kept(of: np.ndarray, fraction: float, part: str) -> np.ndarray:
            return make_transform({"held_out": {"fraction": fraction, "part": part}}).keep(of, "s")

        small, large = sorted([one, other])
        assert (kept(counts, small, "held_out") + kept(counts, small, "rest") == counts).all()
        assert np.isin(kept(counts, small, "held_out"), [0, *counts]).all()  # extents stay whole
        assert (kept(counts, small, "held_out") <= kept(counts, large, "held_out")).all()
        longer = np.concatenate([counts, np.full(more, 3)])
        assert (kept(longer, one, "held_out")[: len(counts)] == kept(counts, one, "held_out")).all()

    def test_held_out_is_about_its_fraction(self) -> None:
        kept = make_transform({"held_out": {"fraction": 0.1, "part": "held_out"}}).keep(np.ones(10_000), "s")
        assert abs(kept.sum() - 1_000) < 100  # three standard deviations are 90

    def test_seed_and_source_draw_others_and_order_of_epochs_plays_no_part(self) -> None:
        counts = np.full(200, 5)
        draw = {
            (seed, name): tuple(
                make_transform({"subset": {"fraction": 0.3, "seed": seed}}).keep(counts, name)
            )
            for seed in (0, 1)
            for name in ("a", "b")
        }
        assert len(set(draw.values())) == 4


class TestPictures:
    RULE = VisionRule(min_pixels=784, max_pixels=784 * 100)

    def test_resize(self) -> None:
        rule = make_transform({"resize": {"max_pixels": 784 * 4}}).vision(self.RULE)
        assert (rule.min_pixels, rule.max_pixels, rule.patch) == (784, 784 * 4, 14)

    @pytest.mark.parametrize(
        ("options", "part"),
        [
            ({}, "give min_pixels, max_pixels or both"),
            ({"max_pixels": 700}, "below images.min_pixels 784"),
            ({"min_pixels": 784 * 200}, "is below min_pixels"),
            ({"min_pixels": 10, "max_pixels": 700}, "below one token's"),
        ],
    )
    def test_resize_that_can_not_be(self, options: dict[str, int], part: str) -> None:
        with pytest.raises(ConfigError) as error:
            make_transform({"resize": options}).vision(self.RULE)
        assert part in str(error.value)

    def test_crop(self) -> None:
        crop = make_transform({"crop": {"height": 56, "width": 84, "at": "random"}}).crop(self.RULE)
        assert crop == PictureCrop(56, 84, random=True)

    @pytest.mark.parametrize(
        ("height", "width", "part"),
        [
            (224, 230, "width 230 is no multiple of images.patch * images.merge = 28; near it: 224, 252"),
            (10, 28, "height 10 is no multiple of images.patch * images.merge = 28; near it: 28"),
            (2800, 2800, "change these bounds for the source by `resize`"),
        ],
    )
    def test_crop_that_can_not_be(self, height: int, width: int, part: str) -> None:
        with pytest.raises(ConfigError) as error:
            make_transform({"crop": {"height": height, "width": width}}).crop(self.RULE)
        assert part in str(error.value)
