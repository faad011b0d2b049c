"""Every built-in transform through the exam that any must pass, and the pages that describe them."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from dataloader_svc.config.schema import Source
from dataloader_svc.testing.transforms import ROWS, TransformContract
from dataloader_svc.transforms.per_source import (
    FILTERED,
    TRANSFORMS,
    BlockRows,
    make_transform,
    make_transforms,
)

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "extending" / "transform.md"
PAGE = DOCS / "transforms.md"

BUILT_IN = {
    "filter": {"filter": "n > 2"},
    "map": {"map": {"function": "mapped_of_test:shout", "columns": ["n"]}},
    "subset": {"subset": 0.3},
    "max_samples": {"max_samples": 7},
    "held_out": {"held_out": 0.3},
    "resize": {"resize": {"max_pixels": 100352}},
    "crop": {"crop": {"height": 224, "width": 224}},
}


def code_of(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


def test_all_are_examined():
    assert set(BUILT_IN) == set(TRANSFORMS.names())


class TestEveryTransform(TransformContract):
    @pytest.fixture(params=BUILT_IN)
    def entry(self, request, tmp_path, monkeypatch):
        (tmp_path / "mapped_of_test.py").write_text(
            "def shout(row):\n    return {'text': row['text'].upper()} if row['n'] else None\n"
        )
        monkeypatch.setattr(sys, "path", list(sys.path))
        yield BUILT_IN[request.param]
        sys.modules.pop("mapped_of_test", None)

    @pytest.fixture
    def raw(self, entry):
        return {"n": [*range(ROWS - 1), None]} if {"filter", "map"} & set(entry) else {}


@pytest.fixture
def guide(monkeypatch):
    monkeypatch.setattr(TRANSFORMS, "_items", dict(TRANSFORMS._items))
    module = type(sys)("transform_guide")
    monkeypatch.setitem(sys.modules, "transform_guide", module)
    exec(compile(code_of(GUIDE), str(GUIDE), "exec"), module.__dict__)
    return module


class TestTheGuide(TransformContract):
    """The transform that docs/extending/transform.md teaches, with the fixtures printed there."""

    @pytest.fixture
    def entry(self, guide):
        return guide.TestVariety.entry.__wrapped__(None)

    @pytest.fixture
    def columns(self, guide):
        return guide.TestVariety.columns.__wrapped__(None)

    def test_it_does_what_the_page_says(self, transform, columns):
        rows = BlockRows(ROWS, columns)
        transform.apply(rows)
        assert rows.out == {1: FILTERED, 5: FILTERED}


class TestThePage:
    def test_its_configuration_is_one(self):
        blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        loaded = [yaml.safe_load(block) for block in blocks]
        (source,) = (Source.model_validate(one["sources"]["captions"]) for one in loaded if "sources" in one)
        assert [type(made).__name__ for made in make_transforms(source)] == [
            *("Subset", "MaxSamples", "Filter", "Map", "Resize", "Crop")
        ]
        for one in loaded:
            if "sources" not in one:
                make_transform(one)

    def test_every_transform_has_a_word_there(self):
        for name in TRANSFORMS.names():
            assert re.search(rf"^## .*\b{name}\b", PAGE.read_text(), re.MULTILINE)

    def test_its_function_does_what_it_says(self):
        names: dict[str, object] = {}
        exec(compile(code_of(PAGE), str(PAGE), "exec"), names)
        strip = names["strip_html"]
        assert strip({"text": "<p>Fish &amp; chips, every day of the week</p>"}) == {
            "text": " Fish & chips, every day of the week "
        }
        assert strip({"text": "<b>short</b>"}) is None
