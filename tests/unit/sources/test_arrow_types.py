import pyarrow as pa
import pytest

from dataloader_svc.sources.arrow_types import columns_beside_numbers


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (pa.string(), True),
        (pa.large_binary(), True),
        (pa.null(), True),
        (pa.dictionary(pa.int8(), pa.string()), True),
        (pa.list_(pa.list_(pa.string())), True),
        (pa.struct({"bytes": pa.binary(), "size": pa.int64()}), True),
        (pa.map_(pa.string(), pa.int64()), True),
        (pa.int64(), False),
        (pa.float16(), False),
        (pa.bool_(), False),
        (pa.timestamp("us"), False),
        (pa.dictionary(pa.int8(), pa.int64()), False),
        (pa.list_(pa.list_(pa.int32())), False),
        (pa.list_(pa.float32(), 768), False),
        (pa.struct({"x": pa.float32(), "at": pa.list_(pa.date32())}), False),
    ],
    ids=str,
)
def test_numbers_alone_are_left_out(found, kept):
    assert columns_beside_numbers(pa.schema({"it": found, "other": pa.string()})) == (
        ("it", "other") if kept else ("other",)
    )
