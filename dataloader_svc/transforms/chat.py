"""Chat messages to parts by a Jinja template, so that nothing typed in a message becomes a control token.

The template is rendered twice: once with the messages, once with a unique mark in place of every string in
them. `chat_marks.py` tells from the two which characters of the first come from the template. Only there are
control words control tokens. What is learnt is what the assistant says, with the token that ends its turn, or
what the template says by `{% generation %}`.

A template may trim or JSON-escape what it is given, and drop parts of it (the `<think>` part of earlier
turns). One that does more makes a chat that can't be told apart: such a row is a bad sample, never a guess.

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
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.transforms.base import MEDIA_KINDS, Part
from dataloader_svc.transforms.chat_marks import (
    CLOSE,
    OPEN,
    Generation,
    Marks,
    Stretch,
    TemplateFacts,
    unused_prefix,
)
from dataloader_svc.transforms.tokenizers import Tokenizer

_NAME = re.compile(r"[\w.$ -]{1,64}")
"""Roles, keys and types: they reach the template unmarked, so no control word may be in them."""

_SLOT = "slot"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template. `name` words the errors. Thread-safe."""

    name: str
    tokenizer: Tokenizer
    _template: jinja2.Template
    _facts: TemplateFacts
    _lists: bool  # the template understands content that is a list of typed parts

    @classmethod
    def load(cls, file: Path | None, tokenizer: Tokenizer) -> ChatTemplate:
        """From a Jinja file, or from the tokenizer's `chat_template` where `file` is None.

        Raises ConfigError for a missing file, none at all, or a template that is no Jinja.
        """
        name, source = _source(file, tokenizer)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            environment.globals[key] = tokenizer.setting_token(key) or ""
        try:
            tree = environment.parse(source)
            template = environment.from_string(source)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f"{name}, line {line}" if line else name
            raise ConfigError(f"{place}: the chat template can't be parsed: {error}") from None
        facts = TemplateFacts.of(tree, lambda word: tokenizer.split_control(word) == [word])
        return cls(name, tokenizer, template, facts, _takes_lists(template))

    def parts(self, messages: object, prompt: int = 0) -> list[Part]:
        """The parts of a chat in order. Raises BadSample where it is no chat that can be learnt from.

        Targets are what assistant messages hold and, where a control token follows with at most white space
        between, everything up to and including it; or what stands in `{% generation %}`. Of the first
        `prompt` messages nothing is a target.
        """
        chat = _checked(messages)
        prefix = unused_prefix(chat)
        if not self._lists:
            chat = [{**message, "content": _flat(message["content"], prefix)} for message in chat]
        marks = Marks(self._facts, prefix, _is_name, prompt)
        marked = self._render([marks.mark(message) for message in chat], marks.variables)
        stretches = marks.stretches(self._render(chat, marks.variables), marked)
        if not any(stretch.target for stretch in stretches):
            where = f" behind the {prompt} of the prompt" if prompt else ""
            detail = f"no assistant message with content{where}: nothing to learn"
            raise BadSample(Reason.BAD_MESSAGES, detail)
        return list(_parts(stretches, self.tokenizer, prefix, generation=self._facts.generation))

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, str]) -> str:
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=False, **variables
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
    probe = [{"role": "user", "content": [{"type": "text", "text": OPEN}]}]
    try:
        text = template.render(messages=probe, tools=None, documents=None, add_generation_prompt=False)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return False
    return OPEN in text and "'type'" not in text and '"type"' not in text


def _flat(content: str | list[dict[str, Any]], prefix: str) -> str:
    """Typed parts as text, each slot as `prefix`, a word, the number of its kind, and the closing mark."""
    if isinstance(content, str):
        return content
    return "".join(
        part["text"] if part["type"] == "text" else f"{prefix}{_SLOT}{MEDIA_KINDS.index(part['type'])}{CLOSE}"
        for part in content
    )


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
    return [_shown(message) for message in messages]


def _shown(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a template is given: of a medium only its type, under which every template knows it."""
    shown = dict(message)
    if isinstance(shown["content"], list):
        shown["content"] = [
            {"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": part["type"]}
            for part in shown["content"]
        ]
    return shown


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_typed_part(part: object) -> bool:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        return False
    return isinstance(part.get("text"), str) if part["type"] == "text" else part["type"] in MEDIA_KINDS


def _parts(
    stretches: list[Stretch], tokenizer: Tokenizer, prefix: str, *, generation: bool
) -> Iterator[Part]:
    """Parts of a rendered chat: typed text cut at slots only, the template's at control words."""
    slot = re.compile(rf"{re.escape(prefix)}{_SLOT}(\d){CLOSE}")
    closing = False  # what is learnt was the last: the end of the turn belongs to it
    for text, typed, target in stretches:
        if typed:
            yield from _typed_parts(slot.split(text), target)
            closing = target and not generation
            continue
        words = tokenizer.split_control(text)
        ends = closing and _ends_turn(words)
        for word in words:
            if isinstance(word, str):
                yield Part(word, -1, False, target or ends)
            else:
                yield Part(None, word, False, target or ends)
                ends = False
        closing = False


def _typed_parts(pieces: list[str], target: bool) -> Iterator[Part]:
    """Texts with the numbers of kinds between them."""
    for number, piece in enumerate(pieces):
        if number % 2:
            yield Part(None, -1, True, False, slot=int(piece))
        elif piece or len(pieces) == 1:
            yield Part(piece, -1, True, target)


def _ends_turn(words: list[str | int]) -> bool:
    """Whether a control token is the first thing that follows, white space aside."""
    return next((not isinstance(w, str) for w in words if not (isinstance(w, str) and w.isspace())), False)
