"""`filter: "width >= 256 and lang == 'en'"`: which rows are wanted, by an expression on their fields.

A row is delivered where the expression is true. Where it is false, or unknown because a field is null, the
row is left out on purpose. Where it makes no sense (a number compared with a string) the row is bad.
"""

from __future__ import annotations

from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.transforms.per_source.base import FILTERED, TRANSFORMS, BlockRows, Transform
from dataloader_svc.transforms.per_source.expression import Expression, ExpressionError, WrongType


class FilterOptions(Model):
    """Options of `filter`."""

    where: str = Field(description="Expression on the fields of a row, mapped or not.")


@TRANSFORMS.register("filter")
class Filter(Transform):
    """Deliver only the rows for which an expression on their fields is true."""

    Options = FilterOptions
    shorthand = "where"

    def __init__(self, options: Model) -> None:
        super().__init__(options)
        assert isinstance(options, FilterOptions), "checked by Options"
        try:
            self._expression = Expression.parse(options.where)
        except ExpressionError as error:
            raise ConfigError(str(error)) from None

    @property
    def columns(self) -> tuple[str, ...]:
        return self._expression.names

    def apply(self, rows: BlockRows) -> None:
        """Also of rows that lack a mapped field: `text is not None` keeps them out of the quarantine."""
        names = self._expression.names
        columns = [rows.raw[name] for name in names]
        for row in range(rows.num_rows):
            problem = rows.out.get(row)
            if problem is not None and problem.reason != Reason.MISSING_FIELD:
                continue
            try:
                wanted = self._expression.holds({n: c[row] for n, c in zip(names, columns, strict=True)})
            except WrongType as error:
                rows.out.setdefault(row, BadSample(Reason.WRONG_TYPE, f"filter: {error}"))
                continue
            if not wanted:
                rows.out[row] = FILTERED
