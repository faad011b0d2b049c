"""A tiny byte-level BPE tokenizer, made in memory in milliseconds: what tests use instead of a real one.

It has what real ones have: merges, special tokens, a control word in bars that is not marked special, an
ordinary added token, and a chat template. Every string survives encoding and decoding.
"""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

BOS, EOS, IMAGE, VIDEO = "<|bos|>", "<|end|>", "<|image_pad|>", "<|video_pad|>"
START, STOP = "<|im_start|>", "<|im_end|>"
USER = "<|User|>"
"""In bars, but not marked special, as DeepSeek's turn words are."""
THINK = "<think>"
"""An added token that is ordinary vocabulary."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role not in ('system', 'user', 'assistant') -%}"
    "{{- raise_exception('unknown role ' + message.role) -}}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and the end of the story is the beginning",
    "user assistant system user assistant hello world hello there, what is in the picture?",
    "def f(x):\n    return x + 1\n\nfor i in range(10):\n    print(i)\n",
)


def make_tokenizer(folder: Path) -> Path:
    """Write `tokenizer.json` and `tokenizer_config.json` into `folder` and return it.

    About 400 entries: 256 bytes, the merges of a few sentences, and the tokens named in this module.
    """
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=380,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(_CORPUS, trainer)
    library.add_special_tokens([BOS, EOS, IMAGE, VIDEO, START, STOP])
    library.add_tokens([USER, THINK])
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": BOS}, "eos_token": EOS, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
