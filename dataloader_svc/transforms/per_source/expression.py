"""Expressions on the fields of a row: a small language with Python's syntax and SQL's rule for null.

    comparisons    == != < <= > >=, chained; `in`, `not in` (a list, or a part of a string); `is None`
    logic          and, or, not
    numbers        + - * / // %
    functions      len(x), lower(x), number(x) of a text that is one
    fields         width; json.width for a field inside one; col("a name") where that is no Python name

Null makes a result null (unknown), but for `is None`, `== None`, and where `and`/`or` is decided without it
(Kleene's logic, as in SQL); division by zero is null. `holds` is whether the result is true. Values of
different kinds don't compare: WrongType, not false, because `label == "3"` on numbers would quietly drop
everything. Nothing else is parsed, so nothing can be reached: no calls, indices, powers or lambdas.
Evaluation is bounded by the length of the expression. Knows nothing of rows or files.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataloader_svc.registry import nearest

MAX_LENGTH = 4096
_MAX_DEPTH = 40

Row = Mapping[str, Any]
Value = Callable[[Row], Any]


class ExpressionError(ValueError):
    """The expression is none; the text says where."""


class WrongType(ValueError):
    """The expression makes no sense for this row."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. `names`: the fields that it looks at, in order of appearance."""

    text: str
    names: tuple[str, ...]
    _value: Value

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Raises ExpressionError for what is no expression of this language, or looks at no field."""
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"{len(text)} characters; at most {MAX_LENGTH}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f" at column {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
            raise ExpressionError(
                f"no expression: {getattr(error, 'msg', error)}{where} in {text!r}; a field whose name is no "
                'Python name is written col("name")'
            ) from None
        names: dict[str, None] = {}
        value = _build(tree, names, 0)
        if not names:
            raise ExpressionError(f"{text!r} looks at no field")
        return cls(text, tuple(names), value)

    def holds(self, row: Row) -> bool:
        """Whether it is true of a row that has all `names`. Raises WrongType."""
        value = self._value(row)
        if value is not None and not isinstance(value, bool):
            raise WrongType(f"{self.text!r} gives {_shown(value)}, neither true nor false")
        return value is True


def _build(node: ast.expr, names: dict[str, None], depth: int) -> Value:
    """The evaluator of a node; the fields that it looks at are added to `names`."""
    if depth > _MAX_DEPTH:
        raise ExpressionError(f"nested deeper than {_MAX_DEPTH}")
    parts = _PARTS.get(type(node))
    if parts is None:
        raise ExpressionError(
            f"{ast.unparse(node)!r}: only comparisons, and/or/not, in, arithmetic, len(), lower() and "
            "number() may stand here"
        )
    return parts(node, names, depth + 1)


def _constant(node: Any, names: dict[str, None], depth: int) -> Value:  # noqa: ARG001
    value = node.value
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ExpressionError(f"{ast.unparse(node)!r}: expected a number, a string, True, False or None")
    return lambda row: value  # noqa: ARG005


def _field(node: Any, names: dict[str, None], depth: int) -> Value:  # noqa: ARG001
    parts: list[str] = []
    current = node
    while isinstance(current, ast.Attribute):
        parts.append(current.attr)
        current = current.value
    if not isinstance(current, ast.Name):
        raise ExpressionError(f"{ast.unparse(node)!r}: a dot may only follow a field's name")
    return _named(".".join([current.id, *reversed(parts)]), names)


def _named(name: str, names: dict[str, None]) -> Value:
    if any(part.startswith("__") for part in name.split(".")):
        raise ExpressionError(f"{name!r}: names that begin with two underscores are refused")
    if name in ("null", "true", "false"):
        raise ExpressionError(f"{name!r}: written {'None' if name == 'null' else name.title()} here")
    names[name] = None
    return lambda row: row[name]


def _list(node: Any, names: dict[str, None], depth: int) -> Value:
    items = [_build(item, names, depth) for item in node.elts]
    return lambda row: [item(row) for item in items]


def _boolean(node: Any, names: dict[str, None], depth: int) -> Value:
    terms = [_build(term, names, depth) for term in node.values]
    decides = isinstance(node.op, ast.Or)  # a true term decides `or`, a false one `and`

    def value(row: Row) -> bool | None:
        result: bool | None = not decides
        for term in terms:
            found = _truth(term(row))
            if found is decides:
                return decides
            if found is None:
                result = None
        return result

    return value


def _truth(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise WrongType(f"{_shown(value)} is neither true nor false")


def _unary(node: Any, names: dict[str, None], depth: int) -> Value:
    operand = _build(node.operand, names, depth)
    if isinstance(node.op, ast.Not):

        def negated(row: Row) -> bool | None:
            found = _truth(operand(row))
            return None if found is None else not found

        return negated
    if not isinstance(node.op, ast.USub | ast.UAdd):
        raise ExpressionError(f"{ast.unparse(node)!r}: only not, + and - may stand in front")
    sign = -1 if isinstance(node.op, ast.USub) else 1
    return lambda row: None if (found := operand(row)) is None else sign * _number(found)


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _arithmetic(node: Any, names: dict[str, None], depth: int) -> Value:
    operate = _ARITHMETIC.get(type(node.op))
    if operate is None:
        raise ExpressionError(f"{ast.unparse(node)!r}: of arithmetic there are + - * / // %")
    left, right = _build(node.left, names, depth), _build(node.right, names, depth)

    def value(row: Row) -> Any:
        a, b = left(row), right(row)
        if a is None or b is None:
            return None
        try:
            return operate(_number(a), _number(b))
        except ZeroDivisionError:
            return None
        except OverflowError as error:
            raise WrongType(f"{ast.unparse(node)!r}: {error}") from None

    return value


def _number(value: Any) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise WrongType(f"arithmetic needs numbers, found {_shown(value)}")


def _equal(a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    _same_kind(a, b, "==")
    return bool(a == b)


def _ordered(compare: Callable[[Any, Any], bool], sign: str) -> Callable[[Any, Any], bool | None]:
    def value(a: Any, b: Any) -> bool | None:
        if a is None or b is None:
            return None
        _same_kind(a, b, sign)
        try:
            return bool(compare(a, b))
        except TypeError:
            raise WrongType(f"{_shown(a)} and {_shown(b)} have no order") from None

    return value


def _contained(a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    if isinstance(b, str):
        _same_kind(a, b, "in")
        return a in b
    if not isinstance(b, Sequence | Mapping):
        raise WrongType(f"in needs a list or a string, found {_shown(b)}")
    found = [_equal(a, item) for item in b]
    return True if True in found else None if None in found else False


def _opposite(compare: Callable[[Any, Any], bool | None]) -> Callable[[Any, Any], bool | None]:
    return lambda a, b: None if (found := compare(a, b)) is None else not found


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool | None]] = {
    ast.Eq: _equal,
    ast.NotEq: _opposite(_equal),
    ast.Lt: _ordered(operator.lt, "<"),
    ast.LtE: _ordered(operator.le, "<="),
    ast.Gt: _ordered(operator.gt, ">"),
    ast.GtE: _ordered(operator.ge, ">="),
    ast.In: _contained,
    ast.NotIn: _opposite(_contained),
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}


def _comparison(node: Any, names: dict[str, None], depth: int) -> Value:
    sides = [node.left, *node.comparators]
    values = [_build(side, names, depth) for side in sides]
    links = []
    for number, sign in enumerate(node.ops):
        null = any(
            isinstance(side, ast.Constant) and side.value is None for side in sides[number : number + 2]
        )
        if isinstance(sign, ast.Is | ast.IsNot) and not null:
            raise ExpressionError(f"{ast.unparse(node)!r}: `is` compares with None only; write ==")
        if null and isinstance(sign, ast.Eq | ast.NotEq):  # what people mean by it
            sign = ast.Is() if isinstance(sign, ast.Eq) else ast.IsNot()
        links.append((_COMPARISONS[type(sign)], values[number], values[number + 1]))

    def value(row: Row) -> bool | None:
        result: bool | None = True
        for compare, left, right in links:
            found = compare(left(row), right(row))
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return value


def _length(value: Any) -> int:
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    raise WrongType(f"len() needs a string or a list, found {_shown(value)}")


def _lower(value: Any) -> str:
    if isinstance(value, str):
        return value.lower()
    raise WrongType(f"lower() needs a string, found {_shown(value)}")


def _parsed(value: Any) -> int | float:
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise WrongType(f"number() needs a text that is one, found {_shown(value)}")


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"len": _length, "lower": _lower, "number": _parsed}


def _call(node: Any, names: dict[str, None], depth: int) -> Value:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    known = ["col", *_FUNCTIONS]
    if name not in known:
        raise ExpressionError(f"no function {name!r}; known: {', '.join(known)}{nearest(name, known)}")
    if len(node.args) != 1 or node.keywords:
        raise ExpressionError(f"{ast.unparse(node)!r}: {name}() takes one argument")
    if name == "col":
        argument = node.args[0]
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            raise ExpressionError(f"{ast.unparse(node)!r}: col() takes a field's name in quotes")
        return _named(argument.value, names)
    function, argument = _FUNCTIONS[name], _build(node.args[0], names, depth)
    return lambda row: None if (found := argument(row)) is None else function(found)


_PARTS: dict[type[ast.expr], Callable[[Any, dict[str, None], int], Value]] = {
    ast.Constant: _constant,
    ast.Name: _field,
    ast.Attribute: _field,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Set: _list,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.BinOp: _arithmetic,
    ast.Compare: _comparison,
    ast.Call: _call,
}


def _same_kind(a: Any, b: Any, sign: str) -> None:
    kinds = [
        "number" if isinstance(v, int | float) and not isinstance(v, bool) else type(v).__name__
        for v in (a, b)
    ]
    if kinds[0] != kinds[1]:
        raise WrongType(f"{_shown(a)} {sign} {_shown(b)}: different kinds of values")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
