"""The examples of docs/documents.md, data for them with every nasty row, and what each row becomes."""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer

PAGE = (Path(__file__).parents[1] / "docs" / "documents.md").read_text()
EXAMPLES = {
    yaml.safe_load(block)["job"]: block
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
}
PICTURE, END = "[picture]", tiny.EOS


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (56, 56), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


def write_jsonl(path: Path, *rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def text_data(folder: Path) -> None:
    write_jsonl(folder / "web.jsonl", {"text": "hello world"}, {"text": "say <image>"}, {"text": " "})


def captions_data(folder: Path) -> None:
    members = {"a.txt": b"the end", "a.png": png(1), "b.txt": b"see <image>!", "b.jpg": png(2), "c.txt": b"x"}
    write_tar(folder / "photos.tar", members)


def chat_data(folder: Path) -> None:
    (folder / "a.png").write_bytes(png(1))
    data_url = "data:image/png;base64," + base64.b64encode(png(2)).decode()
    answer = {"role": "assistant", "content": "it"}
    pictures = [
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "text", "text": "<image> or"},
        {"type": "image_url", "image_url": {"url": data_url}},
    ]
    write_jsonl(
        folder / "openai.jsonl",
        {"messages": [{"role": "user", "content": "hello"}, answer]},
        {"messages": [{"role": "user", "content": pictures}, answer]},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "gone.png"}]}, answer]},
        {"messages": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}, answer]},
        {"messages": []},
    )
    said = {"from": "gpt", "value": "it"}
    write_jsonl(
        folder / "llava.jsonl",
        {"image": "a.png", "conversations": [{"from": "human", "value": "<image>\nwhat?"}, said]},
        {"image": ["a.png", "a.png"], "conversations": [{"from": "human", "value": "both?"}, said]},
        {"conversations": [{"from": "human", "value": "hello"}, said]},
        {"image": None, "conversations": [{"from": "human", "value": "hello"}, said]},
        {"conversations": [{"from": "human", "value": "<image> what?"}, said]},
        {"image": "a.png", "conversations": [{"from": "robot", "value": "<image>"}, said]},
    )


def interleaved_data(folder: Path) -> None:
    (folder / "mmc4_images").mkdir()
    for place in (folder, folder / "mmc4_images"):
        (place / "a.png").write_bytes(png(1))
    (folder / "mmc4_images" / "cut.png").write_bytes(png(3)[:40])
    table = {
        "texts": [["one", None, "two", "three"], ["one", None], ["one"], None],
        "images": [[None, png(1), None, None], [None, None], [None, None], None],
    }
    kinds = pa.schema([("texts", pa.list_(pa.string())), ("images", pa.list_(pa.binary()))])
    pq.write_table(pa.table(table, kinds), folder / "obelics.parquet")
    info = [
        {"image_name": "a.png", "matched_text_index": 1},
        {"image_name": "gone.png", "matched_text_index": 1},
        {"image_name": "cut.png", "matched_text_index": 0},
    ]
    write_jsonl(
        folder / "mmc4.jsonl",
        {"text_list": ["one", "two", "three"], "image_info": info},
        {"text_list": ["one", "two"], "image_info": info[2:]},
        {"text_list": ["one"], "image_info": info},
    )
    picture = {"type": "image", "image": "a.png"}
    write_jsonl(
        folder / "parts.jsonl",
        {"content": [picture, {"type": "text", "text": "<image>"}, picture]},
        {"content": [picture]},
        {"content": []},
        {"content": [picture, {"type": "text", "text": "a"}, {"type": "image", "image": None}]},
    )


def preference_data(folder: Path) -> None:
    (folder / "a.png").write_bytes(png(1))
    human = "\n\nHuman: {}\n\nAssistant: {}"
    write_jsonl(
        folder / "hh.jsonl",
        {"chosen": human.format("hi", "the end"), "rejected": human.format("hi", "the dog")},
        {"chosen": human.format("hi", "the end"), "rejected": human.format("hi", "the end")},
        {"chosen": "hello", "rejected": "world"},
        {"chosen": human.format("hi", "the end"), "rejected": human.format("hi", "")},
    )
    write_jsonl(
        folder / "orca.jsonl",
        {"question": "the sky is", "chosen": " blue", "rejected": " green"},
        {"question": None, "chosen": " blue", "rejected": " green"},
        {"question": "the sky is", "chosen": " blue", "rejected": ["green"]},
    )
    chats = [
        [[("user", "hello"), ("assistant", answer)] for answer in ("it", "that")],
        [[("user", "hello"), ("assistant", "it"), ("user", "and?"), ("assistant", a)] for a in ("it", "no")],
        [[("user", "hello")], [("user", "hello"), ("assistant", "it")]],
        [[("assistant", "it"), ("user", "one")], [("assistant", "it"), ("user", "two")]],
    ]
    sides = [[[{"role": r, "content": c} for r, c in chat] for chat in pair] for pair in chats]
    message = pa.struct([("role", pa.string()), ("content", pa.large_string())])
    kinds = pa.schema([("chosen", pa.list_(message)), ("rejected", pa.large_list(message))])
    columns = {"chosen": [pair[0] for pair in sides], "rejected": [pair[1] for pair in sides]}
    pq.write_table(pa.table(columns, kinds), folder / "ultrafeedback.parquet")
    asked = {"messages": [{"role": "user", "content": "hello"}]}
    write_jsonl(
        folder / "openai_pairs.jsonl",
        {"input": asked, "preferred_output": [said("it")], "non_preferred_output": [said("that")]},
        {"input": asked, "preferred_output": said("it"), "non_preferred_output": "that"},
        {"input": asked, "preferred_output": said("it"), "non_preferred_output": []},
    )
    seen = {"type": "image_url", "image_url": {"url": "a.png"}}
    write_jsonl(
        folder / "pictures.jsonl",
        {"question": "<image> what?", "image": "a.png", "chosen": "it", "rejected": "that"},
        {"question": "hello", "chosen": "it", "rejected": "that"},
        {"question": "what?", "image": ["a.png", "a.png"], "chosen": "it", "rejected": "that"},
        {"question": [{"role": "user", "content": [seen]}], "chosen": "it", "rejected": "that"},
        {"question": "<image> what?", "image": "gone.png", "chosen": "it", "rejected": "that"},
        {"question": "what?", "image": "a.png", "chosen": "it", "rejected": "<image> <image>"},
    )


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def pretokenized_data(folder: Path) -> None:
    word = Tokenizer.load(folder / "tokenizer").encode_batch(["hello world"])[0].tolist()
    rows = [word, word, word, [*word, 1000], word, None]
    masks = [[1] * len(word), [0] * (len(word) - 1) + [1], [1], [1] * (len(word) + 1), [0] * len(word), [1]]
    kinds = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))])
    pq.write_table(pa.table({"input_ids": rows, "loss_mask": masks}, kinds), folder / "ids.parquet")
    numbers = np.array(word, "<u2").tobytes()
    write_tar(folder / "ids.tar", {"a.bin": numbers, "b.bin": numbers[:-1], "c.bin": b""})


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def chat(user: str, answer: str = "it") -> str:
    return turn("user", user) + turn("assistant", answer) + END


def pair(user: str) -> str:
    """A prompt that was answered twice: both documents, as they follow each other."""
    return chat(user) + chat(user, "that")


# Source -> of each row its document, with PICTURE for each picture; or the code of its reason.
EXPECTED: dict[str, list[str]] = {
    "web": [f"hello world{END}", f"say <image>{END}", "empty_text"],
    "photos": [f"{PICTURE}the end{END}", f"see {PICTURE}!{END}", "missing_field"],
    "openai": [
        chat("hello"),
        chat(f"{PICTURE}<image> or{PICTURE}"),
        "missing_file",
        "bad_messages",
        "bad_messages",
    ],
    "llava": [
        chat(f"{PICTURE}\nwhat?"),
        chat(f"{PICTURE}{PICTURE}both?"),
        chat("hello"),
        chat("hello"),
        "marker_mismatch",
        "bad_messages",
    ],
    "obelics": [f"one{PICTURE}two\n\nthree{END}", "missing_field", "bad_record", "missing_field"],
    "mmc4": [f"one{PICTURE}two three{END}", f"one two{END}", "bad_record"],
    "parts": [f"{PICTURE}<image>{PICTURE}{END}", "empty_text", "empty_text", "missing_field"],
    "hh": [
        f"\n\nHuman: hi\n\nAssistant: the end{END}\n\nHuman: hi\n\nAssistant: the dog{END}",
        "bad_record",
        "bad_record",
        "empty_text",
    ],
    "orca": [f"the sky is blue{END}the sky is green{END}", "missing_field", "wrong_type"],
    "ultrafeedback": [
        pair("hello"),
        turn("user", "hello")
        + turn("assistant", "it")
        + chat("and?")
        + turn("user", "hello")
        + turn("assistant", "it")
        + chat("and?", "no"),
        "bad_messages",
        "bad_messages",
    ],
    "openai_pairs": [pair("hello"), pair("hello"), "bad_messages"],
    "pictures": [
        pair(f"{PICTURE} what?"),
        pair("hello"),
        pair(f"{PICTURE}{PICTURE}what?"),
        pair(PICTURE),
        "missing_file",
        "marker_mismatch",
    ],
    "shards": [
        f"hello world{END}",
        f"hello world{END}",
        "bad_record",
        "bad_record",
        "bad_record",
        "missing_field",
    ],
    "packed": ["hello world", "truncated", "missing_field"],
}
DATA = {
    "text": text_data,
    "captions": captions_data,
    "chat": chat_data,
    "interleaved": interleaved_data,
    "preference": preference_data,
    "pretokenized": pretokenized_data,
}
