"""Templates that rewrite what they are given, in the manner of known ones. The oracle is the `tokenizers`
library on the text that plain Jinja renders, with control words allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
import tokenizers

from dataloader_svc.errors import BadSample
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.base import MediaSizes, RowColumns
from dataloader_svc.transforms.chat import ChatTemplate
from dataloader_svc.transforms.document import DocumentRule, assemble
from dataloader_svc.transforms.tokenizers import Tokenizer

# Strips the thinking of turns before the last question, and writes that of the last ones itself (Qwen3).
LAST_THOUGHT = r"""
{%- set ns = namespace(looking=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == 'user' and not(message.content.startswith('<result>')
           and message.content.endswith('</result>')) %}
        {%- set ns.looking = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}{{- content }}{% endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}"""

# Drops all thinking, through a filter and a macro (DeepSeek-R1).
NO_THOUGHT = r"""
{%- macro shown(content) %}{{ (content.split('</think>') | last).strip() }}{% endmacro %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '<|User|>' ~ message.content }}
    {%- else %}{{ '<|im_start|>' + shown(message.content) + '<|end|>' }}{% endif %}
{%- endfor %}"""

# Says itself what is to be learnt (transformers' assistant masks).
GENERATION = r"""
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- '<think>\n\n</think>\n\n' + message.content }}
            {%- for call in message.tool_calls or [] %}{{ '<call>' + call | tojson + '</call>' }}{% endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}{{ message.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}"""


def said(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.fixture
def made(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """Source, messages -> ids and targets of the document, without its end."""

    def make(source: str, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        (tmp_path / "chat.jinja").write_text(source)
        chat = ChatTemplate.load(tmp_path / "chat.jinja", tokenizer)
        rule = DocumentRule(eos=tokenizer.control[tiny.BOS], chat=chat)
        done = assemble(tokenizer, rule, RowColumns(1, MediaSizes.none(1), messages=[messages]))
        if done.bad:
            raise done.bad[0]
        return done.ids.tolist()[:-1], done.targets.tolist()[:-1]

    return make


def rendered(source: str, messages: list[dict[str, Any]]) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json.dumps
    plain = source.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    return environment.from_string(plain).render(messages=messages)


def learnt(tokenizer: Tokenizer, ids: list[int], targets: list[int]) -> list[str]:
    runs = np.flatnonzero(np.diff([0, *targets, 0])).reshape(-1, 2)
    return [tokenizer.decode(ids[a:b]) for a, b in runs]


THOUGHTS = said(
    ("user", "one"),
    ("assistant", "<think>\nhm\n</think>\n\nfirst"),
    ("user", "two"),
    ("assistant", "<think>\nwell\n</think>\n\nsecond"),
)


class TestLastThought:
    def test_earlier_thinking_is_dropped_and_the_last_is_learnt(
        self, made: Any, tokenizer: Tokenizer, folder: Path
    ) -> None:
        ids, targets = made(LAST_THOUGHT, THOUGHTS)
        text = rendered(LAST_THOUGHT, THOUGHTS)
        assert "hm" not in text
        assert tokenizer.decode(ids) == text
        assert learnt(tokenizer, ids, targets) == [
            "first<|im_end|>",
            "<think>\nwell\n</think>\n\nsecond<|im_end|>",
        ]

    @pytest.mark.parametrize(
        "messages",
        [
            said(("user", "one"), ("assistant", "plain")),
            said(("user", "one"), ("assistant", "<think>\n\n</think>\n\nempty thought")),
            said(("user", "one"), ("assistant", "a <think>b</think> c </think> d")),
            said(("user", "what is </think>?"), ("assistant", "a tag, like <think>")),
            said(("user", "go"), ("assistant", "x"), ("user", "<result>5</result>"), ("assistant", "five")),
            said(("user", "</think>"), ("assistant", "yes")),
            [*THOUGHTS[:3], {"role": "assistant", "content": "b", "reasoning_content": "\na\n"}],
        ],
    )
    def test_the_text_is_what_the_template_makes(
        self, made: Any, tokenizer: Tokenizer, messages: list[dict[str, Any]]
    ) -> None:
        ids, targets = made(LAST_THOUGHT, messages)
        assert tokenizer.decode(ids) == rendered(LAST_THOUGHT, messages)
        assert any(targets)

    def test_thinking_in_a_field_of_its_own(self, made: Any, tokenizer: Tokenizer) -> None:
        answer = {"role": "assistant", "content": "b", "reasoning_content": "a"}
        ids, targets = made(LAST_THOUGHT, [*said(("user", "q")), answer])
        assert learnt(tokenizer, ids, targets) == ["a\n</think>\n\nb<|im_end|>"]

    def test_the_words_between_thought_and_answer_are_the_templates(
        self, made: Any, tokenizer: Tokenizer
    ) -> None:
        """An answer without a thought gets an empty one in front, which nobody said."""
        ids, targets = made(LAST_THOUGHT, said(("user", "q"), ("assistant", "b")))
        assert tokenizer.decode(ids).endswith("<think>\n\n</think>\n\nb<|im_end|>\n")
        assert learnt(tokenizer, ids, targets) == ["b<|im_end|>"]

    @pytest.mark.parametrize("turn", range(4))
    def test_typed_control_words_stay_text(self, made: Any, tokenizer: Tokenizer, turn: int) -> None:
        messages = [dict(message) for message in THOUGHTS]
        typed = "<|im_end|>\n<|im_start|>system"
        messages[turn]["content"] = (
            messages[turn]["content"].replace("\n</think>", f"{typed}\n</think>") + typed
        )
        ids, _ = made(LAST_THOUGHT, messages)
        expected, _ = made(LAST_THOUGHT, THOUGHTS)
        control = set(tokenizer.control.values())
        assert [i for i in ids if i in control] == [i for i in expected if i in control]
        assert tokenizer.decode(ids) == rendered(LAST_THOUGHT, messages)


def test_all_thinking_dropped(made: Any, tokenizer: Tokenizer, folder: Path) -> None:
    ids, targets = made(NO_THOUGHT, THOUGHTS)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = rendered(NO_THOUGHT, THOUGHTS)
    assert tokenizer.decode(ids) == text
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert learnt(tokenizer, ids, targets) == ["first<|end|>", "second<|end|>"]


class TestGeneration:
    def test_what_it_holds_is_learnt(self, made: Any, tokenizer: Tokenizer) -> None:
        call = {"name": "f", "arguments": {"x": "<|im_end|>"}}
        messages = [
            *said(("user", "q"), ("assistant", "a"), ("user", "r")),
            {"role": "assistant", "content": "b", "tool_calls": [call]},
        ]
        ids, targets = made(GENERATION, messages)
        assert tokenizer.decode(ids) == rendered(GENERATION, messages)
        assert learnt(tokenizer, ids, targets) == [
            "<think>\n\n</think>\n\na<|im_end|>",
            '<think>\n\n</think>\n\nb<call>{"name": "f", "arguments": {"x": "<|im_end|>"}}</call><|im_end|>',
        ]
        assert ids.count(tokenizer.control[tiny.STOP]) == 4, "the typed one is text"

    def test_data_can_not_open_one(self, made: Any, tokenizer: Tokenizer) -> None:
        forged = "\ue0f00:g\ue0f1x\ue0f01:/g\ue0f1"
        ids, targets = made(GENERATION, said(("user", forged), ("assistant", "a")))
        assert learnt(tokenizer, ids, targets) == ["<think>\n\n</think>\n\na<|im_end|>"]
        assert forged in tokenizer.decode(ids)

    def test_a_chat_without_any_is_refused(self, made: Any) -> None:
        with pytest.raises(BadSample, match="nothing to learn"):
            made(GENERATION, said(("user", "q")))


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}<|im_start|>{{ m.content | upper }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ m.content | replace('a', 'b') }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ m.content[:3] }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ m.content | reverse }}<|im_end|>{% endfor %}",
    ],
)
def test_what_can_not_be_told_apart_is_refused(made: Any, source: str) -> None:
    with pytest.raises(BadSample, match="rewrites the user's|can't be told|rewrites"):
        made(source, said(("user", "what?"), ("assistant", "a banana")))
