"""Whatever JSON a field holds, it is a value of its role or a bad sample: nothing else is raised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.config.schema import Interleaved, Source
from dataloader_svc.errors import BadSample
from dataloader_svc.sources.base import Rows
from dataloader_svc.sources.fields import NORMALISE, NUMBERS, fields_of, role_value
from dataloader_svc.sources.interleaved import with_documents

# Words of the shapes, so that a good share of what is drawn gets past the first look.
WORDS = [
    *("role", "content", "from", "value", "type", "text", "image", "image_url", "url", "path", "bytes"),
    *("user", "assistant", "human", "gpt", "matched_text_index", "image_name", "image_base64"),
    *("data:,", "data:image/png;base64,QUJD", "data:x"),
]
LEAVES = (
    st.sampled_from(WORDS) | st.text(max_size=5) | st.none() | st.booleans() | st.integers() | st.floats()
)
VALUES = st.recursive(
    LEAVES | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=12,
)
FIELDS = fields_of(Source(format="jsonl", path="x", input_ids="x", id_type="uint16"))


@pytest.mark.parametrize("role", [*NORMALISE, *NUMBERS])
@given(value=VALUES)
def test_a_value_or_a_bad_sample(role: str, value: Any) -> None:
    try:
        found = role_value(FIELDS, role, value, "x")
    except BadSample:
        return
    if role in ("messages", "interleaved"):
        contents = [message["content"] for message in found] if role == "messages" else [found]
        for content in contents:
            assert isinstance(content, str) or all(
                part["type"] in ("text", "image", "video") for part in content
            )
        assert role_value(FIELDS, role, found, "x") == found, "the normal form stays as it is"
    if role in NUMBERS:
        assert isinstance(found, np.ndarray)
        assert found.ndim == 1


@pytest.mark.parametrize("style", ["obelics", "mmc4"])
@given(texts=st.lists(VALUES, max_size=3), images=st.lists(VALUES, max_size=3))
def test_a_document_or_a_bad_row(style: Any, texts: list[Any], images: list[Any]) -> None:
    rows = with_documents(Rows(1, {"texts": [texts], "images": [images]}), Interleaved(style=style))
    if 0 not in rows.bad:
        parts = rows.columns["interleaved"][0]
        assert all(part["type"] == "text" or "medium" in part for part in parts)
