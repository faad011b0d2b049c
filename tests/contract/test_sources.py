"""Every registered format through the exam that any format must pass: a new one is tested by its name."""

import re
import sys
from pathlib import Path

import pytest

from dataloader_svc.sources import SOURCES
from dataloader_svc.testing.data import WRITERS
from dataloader_svc.testing.sources import SourceContract

GUIDE = Path(__file__).parents[2] / "docs" / "extending" / "source.md"


class TestEveryFormat(SourceContract):
    @pytest.fixture(params=SOURCES.names())
    def format_name(self, request):
        return request.param


def code_of_the_guide():
    return re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


class TestTheGuide(SourceContract):
    """The format and writer that docs/extending/source.md teaches, as printed there."""

    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch):
        monkeypatch.setattr(SOURCES, "_items", dict(SOURCES._items))
        monkeypatch.setattr(WRITERS, "_items", dict(WRITERS._items))
        module = type(sys)("guide")
        monkeypatch.setitem(sys.modules, "guide", module)
        for block in code_of_the_guide():
            exec(compile(block, str(GUIDE), "exec"), module.__dict__)

    @pytest.fixture
    def format_name(self):
        return "blankline"
