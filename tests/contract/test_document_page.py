"""The examples of docs/documents.md, run: each file as it stands, on data of its kind, through the loader."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from dataloader_svc.config.load import load_config
from dataloader_svc.loader.decode import PieceRange, decode, take
from dataloader_svc.loader.read import read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer
from document_kinds import DATA, EXAMPLES, EXPECTED, PICTURE


def test_every_kind_has_an_example_and_data():
    assert list(EXAMPLES) == list(DATA)
    sources = [name for block in EXAMPLES.values() for name in yaml.safe_load(block)["sources"]]
    assert sources == list(EXPECTED)


@pytest.mark.parametrize("job", DATA)
def test_an_example(job: str, tmp_path: Path) -> None:
    tiny.make_tokenizer(tmp_path / "tokenizer")
    DATA[job](tmp_path)
    (tmp_path / "job.yaml").write_text(EXAMPLES[job])
    config = load_config(tmp_path / "job.yaml").config
    tokenizer = Tokenizer.of(config, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        for name, source in config.sources.items():
            reader = SourceReader(name, source, tmp_path, None, config.seed)
            rule = sample_rule(config, name, tmp_path, tokenizer)
            held = read_block(reader, BlockId(name, 0, 0), rule, pool)
            reasons = {row.position: row.reason for row in held.bad}
            got: dict[int, str] = {}
            for position in range(len(held.id_offsets) - 1):
                row = held.ref(position).row
                if position in reasons:
                    got[row] = reasons[position]
                    continue
                length = int(held.id_offsets[position + 1] - held.id_offsets[position])
                piece = take(held, PieceRange(position, 0, length), reader, rule)
                frame = decode([piece], config.images.patch, pool)
                assert frame.arrays["ok"].all()
                assert len(frame.arrays["pixels"]) == 16 * len(piece.media)
                assert not len(piece.media) or frame.arrays["pixels"].any()
                got[row] = tokenizer.decode(piece.ids.tolist()).replace(tiny.IMAGE * 4, PICTURE)
            assert [got[row] for row in sorted(got)] == EXPECTED[name], name
