"""The configurations of docs/storage.md are ones that the schema takes."""

import re
from pathlib import Path

import pytest
import yaml

from dataloader_svc.config.schema import Config
from dataloader_svc.storage.patterns import scheme_of
from dataloader_svc.storage.remote import PACKAGES

PAGE = (Path(__file__).parents[3] / "docs" / "storage.md").read_text()
EXAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]


@pytest.mark.parametrize("values", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples(values):
    whole = EXAMPLES[0] | values
    weights = dict.fromkeys(whole["sources"], 1.0)
    Config.model_validate(
        whole | {"mixture": {"schedule": [{"step": 0} | weights]}, "media_tokens": {"image": "<i>"}}
    )


def test_every_scheme_has_one():
    places = [
        place for values in EXAMPLES for source in values["sources"].values() for place in [source["path"]]
    ]
    assert {scheme_of(place) for place in places} - {None} == set(PACKAGES) - {"memory", "http"}
