"""Which characters of a rendered chat are whose: the template's own, typed in a message, or to be learnt.

A chat is rendered twice, once with marks in place of what was typed. Where a template looks for words in a
message (`content.split('</think>')`), those words stay as they are in the marked chat, so that both
renderings take the same way: a template that strips the thinking of earlier turns drops the same marks. What
lies between the marks then tells the stretches of the first rendering apart. Where that fails, the template
does something else to what it is given, and the chat is a bad sample, never a guess.

`{% generation %}...{% endgeneration %}` says what is to be learnt, as in `transformers`; without it that is
what an assistant message holds, with all that the template puts between its parts.

Knows no tokens and no Jinja environment: `chat.py` renders, and cuts what is the template's at control words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from dataloader_svc.errors import BadSample, Reason

ASSISTANT = "assistant"

_LEARNT = ("content", "reasoning_content", "reasoning", "thinking")
"""Keys of an assistant message that hold what the model is to say. Tool calls need `{% generation %}`."""

_LOOKS = frozenset(
    {"count", "find", "index", "rfind", "rindex", "startswith", "endswith", "replace"}
    | {"split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix"}
)
"""Methods of strings, and filters, by which a template looks for a word in a message."""

# Private-use characters: no template has them, and no data that has them is confused (see `unused_prefix`).
OPEN, CLOSE = "\ue0f0", "\ue0f1"
GENERATION_OPEN, GENERATION_CLOSE = "generation_open_", "generation_close_"
"""Variables that a template with `{% generation %}` is rendered with."""


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: writes the two variables around what it holds."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Name(name, "load", lineno=line) for name in (GENERATION_OPEN, GENERATION_CLOSE)]
        first, last = (nodes.Output([mark], lineno=line) for mark in marks)
        return [first, *body, last]


class Stretch(NamedTuple):
    """Characters of a rendered chat. `target`: the model is to learn them."""

    text: str
    typed: bool
    target: bool


class _Run(NamedTuple):
    """What a mark stands for: a string of a message, or what lies between two looked-for words of one.

    before   looked-for words and white space in front of it, to the run before or the string's start
    after    those behind it, where it is the string's last run
    """

    text: str
    role: str
    message: int
    string: int
    learnt: bool
    before: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template's own text says.

    seam         matches the words that it looks for in messages, as a group
    generation   it marks what is to be learnt
    """

    seam: re.Pattern[str]
    generation: bool

    @classmethod
    def of(cls, tree: nodes.Template, may_stay: Callable[[str], bool]) -> TemplateFacts:
        """`may_stay`: whether a word may stay unmarked: no control word or marker is in it."""
        words = sorted({word for word in _looked_for(tree) if may_stay(word)}, key=lambda word: -len(word))
        seam = re.compile("(" + "|".join(map(re.escape, words)) + ")" if words else r"((?!))")
        return cls(seam, any(name.name == GENERATION_OPEN for name in tree.find_all(nodes.Name)))


def _looked_for(tree: nodes.Template) -> Iterator[str]:
    found: list[nodes.Node | None] = []
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _LOOKS:
            found += call.args
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            found.append(compare.expr)
    for used in tree.find_all(nodes.Filter):
        if used.name in _LOOKS:
            found += used.args
    found += [assign.node for assign in tree.find_all(nodes.Assign)]
    for node in found:
        # A plain name is a key (`'tool_calls' in message`); white space is told apart as it is.
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            word = node.value
            if word.strip() and not word.isidentifier():
                yield word


def unused_prefix(chat: object) -> str:
    """What a mark begins with: in no string of the chat, so that data can't forge one."""
    number = 0
    while any(f"{OPEN}{number}:" in text for text in _strings(chat)):
        number += 1
    return f"{OPEN}{number}:"


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


@dataclass(slots=True)
class Marks:
    """The marks of one chat. `mark` every message, render both, then `stretches`.

    is_name   whether a string may reach the template unmarked where it is a key or a type
    prompt    so many of the first messages hold nothing that is to be learnt
    """

    facts: TemplateFacts
    prefix: str
    is_name: Callable[[object], bool]
    prompt: int = 0
    _runs: list[_Run] = field(default_factory=list)
    _strings: int = 0
    _messages: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """What both renderings are given besides the messages."""
        return {
            GENERATION_OPEN: f"{self.prefix}g{CLOSE}",
            GENERATION_CLOSE: f"{self.prefix}/g{CLOSE}",
        }

    def mark(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """`message` with marks for its strings. The role and types stay. Raises BadSample for odd keys."""
        role = message["role"]
        self._messages += 1

        def marked(value: Any, learnt: bool) -> Any:
            if isinstance(value, str):
                return self._mark(value, role, learnt)
            if isinstance(value, Mapping):
                self._check(value)
                return {
                    key: item if key == "type" and self.is_name(item) else marked(item, learnt)
                    for key, item in value.items()
                }
            return [marked(item, learnt) for item in value] if isinstance(value, list) else value

        self._check(message)
        speaks = role == ASSISTANT and self._messages > self.prompt
        return {
            key: value if key == "role" else marked(value, speaks and key in _LEARNT)
            for key, value in message.items()
        }

    def _check(self, keys: Iterable[object]) -> None:
        if not all(map(self.is_name, keys)):
            raise BadSample(Reason.BAD_MESSAGES, f"a key of {list(keys)!r:.60} is no plain name")

    def _mark(self, text: str, role: str, learnt: bool) -> str:
        """`text` with its runs marked; blank text stays, since templates ask whether there is any."""
        self._strings += 1
        pieces = self.facts.seam.split(text)
        if text.strip() and not any(piece.strip() for piece in pieces[::2]):
            pieces = [text]  # nothing but looked-for words: what was typed is marked all the same
        out, gap = "", ""
        last: int | None = None
        for number, piece in enumerate(pieces):
            if number % 2 or not piece.strip():
                gap += piece
                continue
            last = len(self._runs)
            self._runs.append(_Run(piece, role, self._messages, self._strings, learnt, gap))
            out += f"{gap}{self.prefix}{last}{CLOSE}"
            gap = ""
        if last is not None:
            self._runs[last] = self._runs[last]._replace(after=gap)
        return out + gap

    def stretches(self, rendered: str, marked: str) -> list[Stretch]:
        """The stretches of `rendered` in order. Raises BadSample where the template rewrites a message."""
        segments = re.split(re.escape(self.prefix) + rf"(\d+){CLOSE}", marked)
        pieces = list(_aligned(rendered, segments, self._runs))
        if self.facts.generation:
            return list(self._generated(pieces))
        found: list[Stretch] = []
        for number, (text, run) in enumerate(pieces):
            if run is not None:
                found.append(Stretch(text, typed=True, target=run.learnt))
            else:
                before = pieces[number - 1][1] if number else None
                behind = pieces[number + 1][1] if number + 1 < len(pieces) else None
                found += _between(before, text, behind)
        return [stretch for stretch in found if stretch.text]

    def _generated(self, pieces: list[tuple[str, _Run | None]]) -> Iterator[Stretch]:
        """Targets are what `{% generation %}` holds, but for what it holds of the prompt's messages."""
        mark = re.compile(re.escape(self.prefix) + rf"(/?g){CLOSE}")
        inside = False
        held: list[Stretch] = []  # what the `{% generation %}` in hand holds: its runs say whose it is
        message = 0  # of the last run
        for text, run in pieces:
            message = message if run is None else run.message
            for number, piece in enumerate([text] if run is not None else mark.split(text)):
                if number % 2:
                    inside = piece == "g"
                    learnt = not self.prompt or message > self.prompt
                    yield from (stretch._replace(target=learnt) for stretch in held)
                    held.clear()
                elif piece and inside:
                    held.append(Stretch(piece, run is not None, target=True))
                elif piece:
                    yield Stretch(piece, run is not None, target=False)


def _between(before: _Run | None, text: str, behind: _Run | None) -> Iterator[Stretch]:
    """What the template puts between two runs, of which words that stayed unmarked are typed."""
    learnt_before, learnt_behind = before is not None and before.learnt, behind is not None and behind.learnt
    inside = before is not None and behind is not None and before.message == behind.message
    parted = before is not None and behind is not None and before.string == behind.string
    if parted and behind is not None and text.strip() == behind.before.strip():
        yield Stretch(text, True, learnt_before)
        return
    lead = tail = 0
    if before is not None and (word := before.after.strip()) and text.lstrip().startswith(word):
        lead = text.index(word) + len(word)
    rest = text[lead:]
    if behind is not None and (word := behind.before.strip()) and rest.rstrip().endswith(word):
        tail = len(rest) - rest.rindex(word)
    yield Stretch(text[:lead], True, learnt_before)
    yield Stretch(rest[: len(rest) - tail], False, inside and learnt_before and learnt_behind)
    yield Stretch(rest[len(rest) - tail :], True, learnt_behind)


def _aligned(rendered: str, segments: list[str], runs: list[_Run]) -> Iterator[tuple[str, _Run | None]]:
    """Stretches of `rendered` in order, each with the run it shows, or None for all else.

    `segments` are the stretches between marks, with the marks' numbers between them. Raises BadSample where
    the template did more to a run than trimming or escaping it.
    """
    if not rendered.startswith(segments[0]):
        raise _rewritten(runs[0] if runs else None)
    yield segments[0], None
    at = len(segments[0])
    for number, after in zip(segments[1::2], segments[2::2], strict=True):
        run = runs[int(number)]
        for shown in _shapes(run.text):
            if rendered.startswith(shown + after, at):
                break
        else:
            raise _rewritten(run)
        yield shown, run
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


def _rewritten(run: _Run | None) -> BadSample:
    what = f"the {run.role}'s {run.text[:40]!r}" if run else "a message"
    return BadSample(
        Reason.BAD_MESSAGES,
        f"the chat template rewrites {what}, so its own words can't be told from typed ones",
    )
