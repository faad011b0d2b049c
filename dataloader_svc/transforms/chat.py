"""Chat messages to parts by a Jinja template, so that nothing typed in a message becomes a control token.

The template is rendered twice: once with the messages, once with a unique mark in place of every string in
them. The second rendering tells which characters of the first come from the template. Only there are control
words control tokens, and only the assistant's content with the token that ends its turn is a target.

A template may trim or JSON-escape what it is given. One that rewrites it (drops a `<think>` part of earlier
turns) makes a chat that can't be told apart this way: such a row is a bad sample, never a guess.

Templates come with models from strangers, so they run in Jinja's immutable sandbox. The environment is that
of Hugging Face chat templates (`transformers.utils.chat_template_utils`), but the clock: `strftime_now` is
not defined, as ids must not depend on the day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.transforms.base import MEDIA_KINDS, Part
from dataloader_svc.transforms.tokenizers import Tokenizer

ASSISTANT = "assistant"

_NAME = re.compile(r"[\w.$ -]{1,64}")
"""Roles, keys and types: they reach the template unmarked, so no control word may be in them."""

# Private-use characters: no template has them, and no data that has them is confused (see `_marks`).
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"


class _Content(NamedTuple):
    """A string of the messages that a mark stands for."""

    text: str
    role: str
    is_content: bool  # of `content`; else of a tool call or another field


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, which some templates put around an answer: no effect."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template. `name` words the errors. Thread-safe."""

    name: str
    tokenizer: Tokenizer
    markers: tuple[str, str]
    _template: jinja2.Template
    _lists: bool  # the template understands content that is a list of typed parts

    @classmethod
    def load(cls, file: Path | None, tokenizer: Tokenizer, markers: tuple[str, str]) -> ChatTemplate:
        """From a Jinja file, or from the tokenizer's `chat_template` where `file` is None.

        `markers` are the strings that stand for an image and a video, for templates that take content only
        as text. Raises ConfigError for a missing file, none at all, or a template that is no Jinja.
        """
        name, source = _source(file, tokenizer)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            environment.globals[key] = tokenizer.setting_token(key) or ""
        try:
            template = environment.from_string(source)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f"{name}, line {line}" if line else name
            raise ConfigError(f"{place}: the chat template can't be parsed: {error}") from None
        return cls(name, tokenizer, markers, template, _takes_lists(template))

    def parts(self, messages: object) -> list[Part]:
        """The parts of a chat in order. Raises BadSample where it is no chat that can be learnt from.

        Targets are the contents of assistant messages and, where a control token follows with at most white
        space between, everything up to and including it.
        """
        chat = _checked(messages)
        if not self._lists:
            chat = [{**message, "content": self._flat(message["content"])} for message in chat]
        prefix = _unused_prefix(chat)
        contents: list[_Content] = []
        marked = [_mark(message, prefix, contents) for message in chat]
        segments = re.split(re.escape(prefix) + rf"(\d+){_CLOSE}", self._render(marked))
        pieces = list(_aligned(self._render(chat), segments, contents))
        if not any(content is not None and _is_target(content) for _, content in pieces):
            raise BadSample(Reason.BAD_MESSAGES, "no assistant message with content: nothing to learn")
        return list(_parts(pieces, self.tokenizer))

    def _flat(self, content: str | list[Any]) -> str:
        """Typed parts as text, each medium as its marker."""
        if isinstance(content, str):
            return content
        return "".join(
            part["text"] if part["type"] == "text" else self.markers[MEDIA_KINDS.index(_kind(part["type"]))]
            for part in content
        )

    def _render(self, messages: list[dict[str, Any]]) -> str:
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=False
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise BadSample(Reason.BAD_MESSAGES, f"the chat template refuses: {error}") from None


def _source(file: Path | None, tokenizer: Tokenizer) -> tuple[str, str]:
    if file is not None:
        try:
            return str(file), file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat template {file}: {error}") from None
    found = tokenizer.settings.get("chat_template")
    if isinstance(found, list):  # several by name
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
    if isinstance(found, str):
        return f"chat_template of {tokenizer.name}", found
    raise ConfigError(
        f"a source maps `messages`, but {tokenizer.name} comes without a chat template; set the source's "
        "`chat_template:` to a Jinja file"
    )


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own escapes HTML, which chat templates do not want.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _takes_lists(template: jinja2.Template) -> bool:
    """Whether content may be a list of typed parts: tried, since templates do not say."""
    probe = [{"role": "user", "content": [{"type": "text", "text": _OPEN}]}]
    try:
        text = template.render(messages=probe, tools=None, documents=None, add_generation_prompt=False)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return False
    return _OPEN in text and "'type'" not in text and '"type"' not in text


def _kind(part_type: str) -> str:
    return part_type.removesuffix("_url")


def _checked(messages: object) -> list[dict[str, Any]]:
    """Messages of the shape that templates expect. Raises BadSample that names the message."""
    if not isinstance(messages, list) or not messages:
        raise BadSample(Reason.BAD_MESSAGES, f"expected a list of messages, found {messages!r:.60}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not _is_name(message.get("role")):
            raise BadSample(
                Reason.BAD_MESSAGES, f"message {number}: expected {{role, content}}, found {message!r:.60}"
            )
        content = message.get("content")
        if isinstance(content, str):
            continue
        if not isinstance(content, list) or not all(_is_typed_part(part) for part in content):
            raise BadSample(
                Reason.BAD_MESSAGES,
                f"message {number}: content must be text or a list of {{type: text|image|video}}, "
                f"found {content!r:.60}",
            )
    return [dict(message) for message in messages]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_typed_part(part: object) -> bool:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        return False
    return isinstance(part.get("text"), str) if part["type"] == "text" else _kind(part["type"]) in MEDIA_KINDS


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _unused_prefix(chat: list[dict[str, Any]]) -> str:
    """What a mark begins with: in no string of the chat, so that data can't forge one."""
    number = 0
    while any(f"{_OPEN}{number}:" in text for text in _strings(chat)):
        number += 1
    return f"{_OPEN}{number}:"


def _mark(message: dict[str, Any], prefix: str, contents: list[_Content]) -> dict[str, Any]:
    """`message` with marks for its strings, which are appended to `contents`. Roles and types stay."""
    role = message["role"]

    def mark(value: Any, is_content: bool) -> Any:
        if isinstance(value, str):
            if not value:  # templates ask whether there is content
                return value
            contents.append(_Content(value, role, is_content))
            return f"{prefix}{len(contents) - 1}{_CLOSE}"
        if isinstance(value, Mapping):
            if not all(map(_is_name, value)):
                raise BadSample(Reason.BAD_MESSAGES, f"a key of {list(value)!r:.60} is no plain name")
            return {k: v if k == "type" and _is_name(v) else mark(v, is_content) for k, v in value.items()}
        return [mark(item, is_content) for item in value] if isinstance(value, list) else value

    if not all(map(_is_name, message)):
        raise BadSample(Reason.BAD_MESSAGES, f"a key of {list(message)!r:.60} is no plain name")
    return {key: value if key == "role" else mark(value, key == "content") for key, value in message.items()}


def _aligned(
    rendered: str, segments: list[str], contents: list[_Content]
) -> Iterator[tuple[str, _Content | None]]:
    """Stretches of `rendered` in order, each with the content it shows, or None for the template's own.

    `segments` are the template's stretches with the marks' numbers between them. Raises BadSample where
    the template did more to a content than trimming or escaping it.
    """
    if not rendered.startswith(segments[0]):
        raise _rewritten(contents[0] if contents else None)
    yield segments[0], None
    at = len(segments[0])
    for number, after in zip(segments[1::2], segments[2::2], strict=True):
        content = contents[int(number)]
        for shown in _shapes(content.text):
            if rendered.startswith(shown + after, at):
                break
        else:
            raise _rewritten(content)
        yield shown, content
        yield after, None
        at += len(shown) + len(after)
    if at != len(rendered):
        raise _rewritten(None)


def _shapes(text: str) -> Iterator[str]:
    """What templates make of a string: as it is, trimmed, or as JSON."""
    yield text
    yield from (text.strip(), text.lstrip(), text.rstrip())
    yield from (text.strip("\n"), text.lstrip("\n"), text.rstrip("\n"))
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _rewritten(content: _Content | None) -> BadSample:
    what = f"the {content.role}'s {content.text[:40]!r}" if content else "a message"
    return BadSample(
        Reason.BAD_MESSAGES,
        f"the chat template rewrites {what}, so its own words can't be told from typed ones",
    )


def _is_target(content: _Content) -> bool:
    return content.is_content and content.role == ASSISTANT


def _parts(pieces: list[tuple[str, _Content | None]], tokenizer: Tokenizer) -> Iterator[Part]:
    """Parts of the aligned stretches: typed text as it is, the template's cut at control words."""
    closing = False  # an assistant's content was the last: its end belongs to it
    for text, content in pieces:
        if content is not None:
            yield Part(text, -1, True, _is_target(content))
            closing = _is_target(content)
            continue
        words = tokenizer.split_control(text)
        ends = closing and _ends_turn(words)
        for word in words:
            if isinstance(word, str):
                yield Part(word, -1, False, ends)
            else:
                yield Part(None, word, False, ends)
                ends = False
        closing = closing and not words


def _ends_turn(words: list[str | int]) -> bool:
    """Whether a control token is the first thing that follows, white space aside."""
    return next((not isinstance(w, str) for w in words if not (isinstance(w, str) and w.isspace())), False)
