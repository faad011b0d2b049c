"""What a file of byte-pair ranks doesn't say: how text is cut before merging, and the control tokens.

Sources: the `tiktoken` package's `openai_public.py` (gpt2, cl100k, o200k; in the plain form of the same
patterns) and Qwen's `tokenization_qwen.py` and `tokenizer.json` (qwen, qwen2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest

_GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
_CL100K = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_QWEN = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{_SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Preset:
    """How text is cut, and the control tokens.

    ranks        entries of the vocabulary's file, by which it is told
    names        stems of the files that it is known by
    normalizer   of the tokenizers library, or None
    """

    pattern: str
    ranks: int
    special_tokens: Mapping[str, int]
    normalizer: str | None = None
    names: tuple[str, ...] = field(default=())


def _numbered(words: tuple[str, ...], first: int) -> Mapping[str, int]:
    return MappingProxyType({word: first + number for number, word in enumerate(words)})


_QWEN_WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "gpt2": Preset(_GPT2, 50256, MappingProxyType({"<|endoftext|>": 50256}), names=("gpt2", "r50k_base")),
        "cl100k": Preset(
            _CL100K,
            100256,
            MappingProxyType(
                {
                    "<|endoftext|>": 100257,
                    "<|fim_prefix|>": 100258,
                    "<|fim_middle|>": 100259,
                    "<|fim_suffix|>": 100260,
                    "<|endofprompt|>": 100276,
                }
            ),
            names=("cl100k", "cl100k_base"),
        ),
        "o200k": Preset(
            _O200K,
            199998,
            MappingProxyType({"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
            names=("o200k", "o200k_base"),
        ),
        "qwen": Preset(
            _QWEN,
            151643,
            _numbered((*_QWEN_WORDS, *(f"<|extra_{i}|>" for i in range(205))), 151643),
            names=("qwen",),
        ),
        "qwen2": Preset(_QWEN, 151643, _numbered(_QWEN_WORDS, 151643), normalizer="NFC"),
    }
)

TOKENIZER_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "GPT2Tokenizer": "gpt2",
        "RobertaTokenizer": "gpt2",
        "BartTokenizer": "gpt2",
        "WhisperTokenizer": "gpt2",
        "CodeGenTokenizer": "gpt2",
        "Qwen2Tokenizer": "qwen2",
    }
)
"""Of vocab.json and merges.txt: `tokenizer_class` of tokenizer_config.json, without Fast -> preset."""


def preset_named(name: str) -> Preset:
    """Of `tokenizer_options.preset`. Raises ConfigError with the names that there are."""
    if name not in PRESETS:
        known = list(PRESETS)
        raise ConfigError(
            f"tokenizer_options.preset: unknown {name!r}; known: {', '.join(known)}{nearest(name, known)}"
        )
    return PRESETS[name]
