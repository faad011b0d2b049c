"""A tiny byte-level BPE tokenizer, made in memory in milliseconds: what tests use instead of a real one.

It has what real ones have: merges, special tokens, a control word in bars that is not marked special, an
ordinary added token, and a chat template. Every string survives encoding and decoding.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers

BOS, EOS, IMAGE, VIDEO = "<|bos|>", "<|end|>", "<|image_pad|>", "<|video_pad|>"
AUDIO = "<|audio_pad|>"
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
    library.add_special_tokens([AUDIO])
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": BOS}, "eos_token": EOS, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_pair_ranks(folder: Path) -> dict[bytes, int]:
    """The vocabulary of `make_tokenizer(folder)` as tiktoken has it: bytes -> rank."""
    document = json.loads((folder / "tokenizer.json").read_text())
    # GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(byte): byte for byte in plain}
    byte_of |= {chr(256 + i): byte for i, byte in enumerate(b for b in range(256) if b not in plain)}
    return {bytes(byte_of[c] for c in word): rank for word, rank in document["model"]["vocab"].items()}


def write_ranks(file: Path, ranks: Mapping[bytes, int]) -> Path:
    """A `.tiktoken` file."""
    file.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items()))
    return file


def make_sentencepiece(file: Path) -> Path:
    """A SentencePiece BPE model: bytes, control `[INST]`, user-defined `<keep>` and `<|bar|>`.

    Needs the package sentencepiece.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=360,
        byte_fallback=True,
        character_coverage=1.0,
        control_symbols=["[INST]"],
        user_defined_symbols=["<keep>", "<|bar|>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    file.write_bytes(model.getvalue())
    return file
