"""Which files make the tokenizer that `tokenizer:` names: what is loaded, and what a digest must cover.

By name alone; `transforms/tokenizers/load.py` looks into them.
"""

from __future__ import annotations

from pathlib import Path

_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_SIDE_FILES = ("added_tokens.json",)

SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
"""Beside the vocabulary, later ones win: names of control tokens, added tokens, chat template."""

CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
"""Where newer folders keep the chat template."""


def vocabulary_files(path: Path) -> tuple[Path, ...]:
    """The vocabulary: `path` itself, or in a folder the first of what the formats call it; () for none.

    Two files where the vocabulary is `vocab.json` and `merges.txt`.
    """
    if not path.is_dir():
        return (path,) if path.exists() else ()
    for name in ("tokenizer.json", "tekken.json", *_MODELS):
        if (path / name).is_file():
            return (path / name,)
    ranks = sorted(path.glob("*.tiktoken"))
    if len(ranks) == 1:
        return (ranks[0],)
    pair = (path / "vocab.json", path / "merges.txt")
    return pair if all(file.is_file() for file in pair) else ()


def side_files(path: Path) -> tuple[Path, ...]:
    """Files beside the vocabulary that ids may depend on, besides the settings."""
    folder = path if path.is_dir() else path.parent
    return tuple(folder / name for name in _SIDE_FILES if (folder / name).is_file())
