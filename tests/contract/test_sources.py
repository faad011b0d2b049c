"""Every registered format through the exam that any format must pass: a new one is tested by its name."""

import gzip
import itertools
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dataloader_svc.sources import SOURCES
from dataloader_svc.testing.data import WRITERS
from dataloader_svc.testing.sources import SourceContract

GUIDE = Path(__file__).parents[2] / "docs" / "extending" / "source.md"


class TestEveryFormat(SourceContract):
    @pytest.fixture(params=SOURCES.names())
    def format_name(self, request):
        if request.param == "lance":
            pytest.importorskip("lance", reason="needs the extra lance")
        return request.param


class TestCompressed(SourceContract):
    """Formats that may be compressed, by the contents of the file alone."""

    @pytest.fixture(params=itertools.product(["jsonl", "webdataset"], ["gzip", "zstd"]), ids="-".join)
    def format_name(self, request, monkeypatch):
        plain, how = request.param
        name = f"{plain}-{how}"
        writer = type("CompressedWriter", (WRITERS.get(plain),), {"write": compressing(plain, how)})
        monkeypatch.setattr(SOURCES, "_items", SOURCES._items | {name: SOURCES.get(plain)})
        monkeypatch.setattr(WRITERS, "_items", WRITERS._items | {name: writer})
        return name


def compressing(plain, how):
    def write(self, path, rows):
        WRITERS.get(plain).write(self, path, rows)
        data = path.read_bytes()
        codec = pa.Codec("zstd")
        path.write_bytes(gzip.compress(data) if how == "gzip" else codec.compress(data, asbytes=True))

    return write


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
