"""docs/media.md: its configuration is one, its figures are the defaults, its reasons exist."""

import re
from pathlib import Path

import pytest

from dataloader_svc.config.load import load_config
from dataloader_svc.config.schema import Images, Loader, VideoFields
from dataloader_svc.errors import Reason
from dataloader_svc.testing.tokenizer import make_tokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "media.md").read_text()


def test_the_configuration(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "job.yaml").write_text(block)
    config = load_config(tmp_path / "job.yaml").config
    assert config.images == Images(), "the page spells out the defaults"
    assert config.loader == Loader(workers=2), "the page spells out the defaults"
    video = config.sources["clips"].video
    assert video is not None
    assert video.max_clip_pixels == VideoFields(field="file").max_clip_pixels


@pytest.mark.parametrize(
    "word", sorted(set(re.findall(r"[:;(] ?then `([a-z]+_[a-z]+)`|: `([a-z]+_[a-z]+)`", PAGE)))
)
def test_reasons_exist(word: tuple[str, str]) -> None:
    Reason("".join(word))
