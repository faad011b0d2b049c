"""Every built-in format has a page in docs/formats whose configuration is one."""

import re
from pathlib import Path

import pytest
import yaml

from dataloader_svc.config.schema import Source
from dataloader_svc.sources import SOURCES
from dataloader_svc.sources.index import checked_options

PAGES = Path(__file__).parents[2] / "docs" / "formats"


@pytest.mark.parametrize("name", SOURCES.names())
def test_the_page_of_a_format(name):
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert f"| [{name}]({name}.md) |" in (PAGES / "README.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    sources = [
        Source.model_validate(source)
        for block in blocks
        for source in (yaml.safe_load(block).get("sources") or {}).values()
    ]
    assert name in {source.format for source in sources}
    for source in sources:
        checked_options(SOURCES.get(source.format), source.options)
