"""The examples of docs/documents.md, run: each file as it stands, on data of its kind, through the loader."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

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
from document_kinds import DATA, EXAMPLES, EXPECTED, PAGE, PICTURE


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


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_loss_of_pairs_is_that_of_the_paper(layout: str) -> None:
    """The page's code on a microbatch of two pairs among other documents, against one written as a loop."""
    torch = pytest.importorskip("torch")
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    pair_ids = [0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 0, 0, 0]
    weights = [1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0]
    torch.manual_seed(0)
    logits = torch.randn(16, 7)
    labels = torch.where(torch.tensor(weights) > 0, torch.randint(0, 7, (16,)), -100)
    shape = (16,) if layout == "packed" else (2, 8)
    batch = SimpleNamespace(
        labels=labels.reshape(shape),
        loss_weight=torch.tensor(weights, dtype=torch.float32).reshape(shape),
        pair_ids=torch.tensor(pair_ids, dtype=torch.int32).reshape(shape),
        pair_bounds=torch.tensor([[2, 5, 7], [7, 9, 13]], dtype=torch.int32),
        num_pairs=5,
    )
    reference = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]])
    known = {
        "torch": torch,
        "F": torch.nn.functional,
        "dist": SimpleNamespace(all_reduce=lambda sums, group: sums),
        "cp_group": None,
        "batch": batch,
        "logits": logits.reshape(*shape, 7),
        "ref_chosen": reference[:, 0],
        "ref_rejected": reference[:, 1],
        "beta": 0.1,
    }
    exec(code, known)
    expected = 0.0
    for pair in range(2):
        sums = [
            sum(
                float(logits[at].log_softmax(0)[labels[at]])
                for at in range(16)
                if pair_ids[at] == 2 * pair + side and weights[at]
            )
            for side in (1, 2)
        ]
        margin = (sums[0] - sums[1]) - float(reference[pair, 0] - reference[pair, 1])
        expected += math.log(1 + math.exp(-0.1 * margin)) / 5
    assert known["loss"].item() == pytest.approx(expected, rel=1e-5)
