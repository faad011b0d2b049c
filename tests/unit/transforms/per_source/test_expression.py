"""Filter expressions: values, null, wrong kinds, and what is refused."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.transforms.per_source.expression import Expression, ExpressionError, WrongType

ROW = {
    "width": 300,
    "height": 200.5,
    "lang": "en",
    "tags": ["a", "b"],
    "label": "3",
    "gone": None,
    "ok": True,
    "json.size": 7,
    "a name": "x",
}


def holds(text: str, **row: object) -> bool:
    return Expression.parse(text).holds({**ROW, **row})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width >= 256 and lang == 'en'", True),
        ("width >= 256 and lang == 'de'", False),
        ("100 < width <= 300", True),
        ("100 < width < 300", False),
        ("not (width == 300)", False),
        ("lang in ['en', 'de']", True),
        ("lang not in ('fr',)", True),
        ("'a' in tags and 'c' not in tags", True),
        ("'n' in lang", True),
        ("len(tags) == 2 and len(lang) == 2", True),
        ("lower(lang) == 'en'", True),
        ("width / height > 1.49", True),
        ("width // 7 % 2 == 0", True),
        ("-width < 0 and +width > 0", True),
        ("json.size == 7", True),
        ('col("a name") == "x"', True),
        ("number(label) + 1 == 4", True),
        ("ok", True),
        ("gone is None", True),
        ("gone == None", True),
        ("width is not None and width != None", True),
        ("gone is not None", False),
        # null: unknown, so not kept, also when negated; but decided where the other side decides
        ("gone > 3", False),
        ("not (gone > 3)", False),
        ("gone == 'x'", False),
        ("gone != 'x'", False),
        ("gone in ['x']", False),
        ("gone not in ['x']", False),
        ("gone > 3 or width == 300", True),
        ("gone > 3 and width == 1", False),
        ("not (gone > 3 and width == 1)", True),
        ("len(gone) > 0", False),
        ("width / 0 > 1", False),
    ],
)
def test_values(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lang > 3", "'en' > 3: different kinds"),
        ("label == 3", "'3' == 3: different kinds"),
        ("width in ['300']", "different kinds"),
        ("width", "gives 300, neither true nor false"),
        ("width and ok", "300 is neither true nor false"),
        ("lang + 1 > 2", "arithmetic needs numbers, found 'en'"),
        ("ok + 1 > 2", "arithmetic needs numbers, found True"),
        ("len(width) > 1", "len() needs a string or a list, found 300"),
        ("lower(width) == 'a'", "lower() needs a string"),
        ("number(lang) > 1", "number() needs a text that is one"),
        ("width in height", "in needs a list or a string"),
    ],
)
def test_what_makes_no_sense_is_an_error_not_false(text: str, part: str) -> None:
    with pytest.raises(WrongType) as error:
        holds(text)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("width >=", "no expression"),
        ("width = 3", "no expression"),
        ("", "no expression"),
        ("a name == 3", 'written col("name")'),
        ("3 > 2", "looks at no field"),
        ("width.__class__ == 3", "two underscores"),
        ("__import__('os') == 1", "no function '__import__'"),
        ("lenn(lang) > 1", "did you mean 'len'?"),
        ("lang.lower() == 'en'", "no function 'lang.lower'"),
        ("len(lang, 3) > 1", "takes one argument"),
        ("tags[0] == 'a'", "only comparisons"),
        ("[x for x in tags] == tags", "only comparisons"),
        ("(lambda: width)() == 3", "no function"),
        ("width ** 9 ** 9 > 1", "of arithmetic there are"),
        ("width << 9 > 1", "of arithmetic there are"),
        ("f'{lang}' == 'en'", "only comparisons"),
        ("lang is 'en'", "write =="),
        ("lang == null", "written None here"),
        ("lang == b'en'", "expected a number, a string"),
        ("~width > 1", "only not, + and -"),
        ("not " * 60 + "ok", "nested deeper"),
        ("width > 1 " + "or width > 1 " * 400, "characters; at most 4096"),
        ("(" * 300 + "ok" + ")" * 300, "no expression"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(ExpressionError) as error:
        Expression.parse(text)
    assert part in str(error.value)


def test_names_stand_in_order_of_appearance() -> None:
    assert Expression.parse("b.c > 1 and a == 2 and b.c < 9").names == ("b.c", "a")


TERMS = st.sampled_from(["a", "b", "c", "0", "1", "2", "-1"])
COMPARED = st.tuples(TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), TERMS).map(" ".join)
LOGIC = st.recursive(
    COMPARED | st.sampled_from(["a is None", "b is not None"]),
    lambda inner: st.one_of(
        inner.map(lambda x: f"(not {x})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
    ),
    max_leaves=8,
)
NUMBERS = st.none() | st.integers(-2, 2)


@given(LOGIC, NUMBERS, NUMBERS, NUMBERS)
def test_null_means_what_it_means_in_sql(text: str, a: int | None, b: int | None, c: int | None) -> None:
    expression = Expression.parse(f"({text}) and (a is None or a == a)")
    database = sqlite3.connect(":memory:")
    try:
        sql = expression.text.replace("is not None", "IS NOT NULL").replace("is None", "IS NULL")
        query = f"SELECT ({sql}) FROM (SELECT ? AS a, ? AS b, ? AS c)"
        (expected,) = database.execute(query, (a, b, c)).fetchone()
    finally:
        database.close()
    assert expression.holds({"a": a, "b": b, "c": c}) is (expected == 1)
