import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import SourceError
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.huggingface_layout import data_files, split_names


def files(names, *, split="train", config=None, **contents):
    """data_files of a folder; `contents`: README, state and the like by name without suffix."""
    texts = {name: text for name, text in contents.items() if text is not None}
    named = {("README.md" if name == "README" else f"{name}.json"): text for name, text in texts.items()}
    return data_files([*names, *named], lambda name: named[name].encode(), config, split)


def splits(names, **contents):
    """split_names of the same."""
    named = {("README.md" if name == "README" else f"{name}.json"): text for name, text in contents.items()}
    return split_names([*names, *named], lambda name: named[name].encode())


def header(text):
    return f"---\nlicense: mit\n{text}\n---\n# Data\n"


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        # the layout that push_to_hub writes, with any name of a split
        (
            ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet"],
            "train",
            ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        ),
        (["data/odd_one-00000-of-00001-abc.parquet"], "odd_one", ["data/odd_one-00000-of-00001-abc.parquet"]),
        # folders
        (["train/a.jsonl", "train/b.jsonl", "dev/a.jsonl"], "validation", ["dev/a.jsonl"]),
        (["x/train/y/a.jsonl", "x/test/a.jsonl"], "train", ["x/train/y/a.jsonl"]),
        (["my-test-set/a.parquet", "train/a.parquet"], "test", ["my-test-set/a.parquet"]),
        # names
        (["train.jsonl", "test.jsonl"], "test", ["test.jsonl"]),
        (["a_train_0.parquet", "a_eval_0.parquet"], "test", ["a_eval_0.parquet"]),
        (["name-train.arrow", "name-test.arrow", "cache.lock"], "train", ["name-train.arrow"]),
        # as C4 has them
        (
            ["en/c4-train.1.json.gz", "en/c4-train.0.json.gz", "en/c4-train.csv.gz"],
            "train",
            ["en/c4-train.0.json.gz", "en/c4-train.1.json.gz"],
        ),
        (["train.tar.zst", "test.tar.gz"], "test", ["test.tar.gz"]),
        # a word only: neither of these says train
        (["trained.jsonl", "constraint.jsonl"], "train", ["constraint.jsonl", "trained.jsonl"]),
        # a folder says it before a name does
        (["train/test_1.jsonl", "train/a.jsonl"], "train", ["train/a.jsonl", "train/test_1.jsonl"]),
        # nothing says anything
        (["b.parquet", "a.parquet", "README.txt", "x.png"], "train", ["a.parquet", "b.parquet"]),
        # of several formats the one that most files have
        (["a.parquet", "b.parquet", "meta.jsonl"], "train", ["a.parquet", "b.parquet"]),
    ],
)
def test_files_by_their_names(names, split, expected):
    assert files(names, split=split) == expected


@pytest.mark.parametrize(
    ("text", "split", "expected"),
    [
        ("configs: [{config_name: default, data_files: 'b/*.jsonl'}]", "train", ["b/1.jsonl", "b/2.jsonl"]),
        ("configs: [{data_files: [b/2.jsonl, b/1.jsonl]}]", "train", ["b/2.jsonl", "b/1.jsonl"]),
        (
            "configs: [{data_files: [{split: held, path: 'a/?.jsonl'}, {split: train, path: b/**}]}]",
            "held",
            ["a/1.jsonl"],
        ),
        ("configs: [{data_files: [{split: x, path: ['**/1.jsonl']}]}]", "x", ["a/1.jsonl", "b/1.jsonl"]),
        ("configs: [{data_dir: b}]", "train", ["b/1.jsonl", "b/2.jsonl"]),
        ("configs: [{data_dir: b, data_files: '[!1].jsonl'}]", "train", ["b/2.jsonl"]),
        ("pretty_name: no configs here", "train", ["a/1.jsonl", "b/1.jsonl", "b/2.jsonl"]),
    ],
)
def test_files_by_the_readme(text, split, expected):
    names = ["a/1.jsonl", "b/1.jsonl", "b/2.jsonl"]
    assert files(names, split=split, README=header(text)) == expected


CONFIGS = header("configs:\n- {config_name: en, data_dir: en}\n- {config_name: de, data_dir: de}")


def test_a_configuration_by_name_and_the_default_one():
    names = ["en/a.jsonl", "de/a.jsonl"]
    assert files(names, config="de", README=CONFIGS) == ["de/a.jsonl"]
    default = CONFIGS.replace("data_dir: de}", "data_dir: de, default: true}")
    assert files(names, README=default) == ["de/a.jsonl"]
    with pytest.raises(SourceError, match=r"configurations en, de; name one with options: \{config"):
        files(names, README=CONFIGS)
    with pytest.raises(SourceError, match="no configuration 'dee'; found: en, de; did you mean 'de'"):
        files(names, config="dee", README=CONFIGS)


@pytest.mark.parametrize(
    ("names", "contents", "expected"),
    [
        (["train/a.jsonl", "dev/a.jsonl"], {}, [(None, "train"), (None, "validation")]),
        (["data/odd_one-00000-of-00001-abc.parquet"], {}, [(None, "odd_one")]),
        (["b.parquet", "picture.png"], {}, [(None, "train")]),
        (["picture.png"], {}, []),
        (["a.arrow"], {"state": '{"_split": "test"}'}, [(None, "test")]),
        (["a.arrow"], {"state": "{}"}, [(None, "train")]),
        (["a.arrow"], {"dataset_dict": '{"splits": ["train", "odd"]}'}, [(None, "train"), (None, "odd")]),
        (
            ["en/train.jsonl", "en/test.jsonl", "de/a.jsonl"],
            {"README": CONFIGS},
            [("en", "train"), ("en", "test"), ("de", "train")],
        ),
        (
            ["a/1.jsonl"],
            {"README": header("configs: [{data_files: [{split: held, path: 'a/?.jsonl'}]}]")},
            [("default", "held")],
        ),
        (["a/1.jsonl"], {"README": header("configs: [{data_files: 'a/*'}]")}, [("default", "train")]),
    ],
)
def test_all_splits_of_all_configurations(names, contents, expected):
    assert splits(names, **contents) == expected
    if "state" not in contents and "dataset_dict" not in contents:
        for config, split in expected:
            assert files(names, config=config, split=split, **contents)


def test_a_configuration_without_a_readme_is_a_folder():
    assert files(["en/train.jsonl", "de/train.jsonl"], config="de") == ["de/train.jsonl"]


@pytest.mark.parametrize(
    ("names", "contents", "words"),
    [
        (["train.jsonl", "test.jsonl"], {"split": "tets"}, "no split 'tets'; found: .*did you mean 'test'"),
        (["picture.png"], {}, "has no data: none of its files ends with .parquet"),
        (
            ["a.jsonl"],
            {"README": header("configs: [{data_files: 'b/*'}]")},
            "nothing that can be read.*'b/\\*'",
        ),
        (["a.jsonl"], {"README": header("configs: [{data_files: [{split: x}]}]")}, "without a path"),
        (["a.jsonl"], {"README": header("configs: [")}, "the header is not YAML"),
        (["a.jsonl"], {"README": header("configs: [{data_files: '[z-a].jsonl'}]")}, "is no pattern"),
        (["a.jsonl"], {"README": header("configs: [{data_files: '../../etc/*.json'}]")}, "nothing that can"),
        ([], {"state": '{"_data_files": [{"filename": "../x.arrow"}]}'}, r"\.\./x\.arrow is not there"),
        (["a.arrow"], {"state": "{"}, "state.json: is not JSON"),
        (["a.arrow"], {"state": "[]"}, "must be an object"),
        (["a.arrow"], {"state": '{"_split": "test"}'}, "no split 'train'; found: test"),
        (["a.arrow"], {"state": '{"_indices_data_files": [{"filename": "i"}]}'}, "flatten_indices"),
        (["a.arrow"], {"dataset_dict": '{"splits": ["train"]}'}, "train/state.json is missing"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(names, contents, words):
    with pytest.raises(SourceError, match=words):
        files(names, **contents)


def saved(folder: Path, texts, split):
    """As `Dataset.save_to_disk` of datasets 4 writes it, the order of its files not that of their names."""
    folder.mkdir(parents=True)
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    half = len(texts) // 2
    for name, part in zip(names, (texts[:half], texts[half:]), strict=True):
        table = pa.table({"text": part})
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": split, "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text('{"features": {"text": {"dtype": "string"}}}')


def texts_of(folder, tmp_path, **options):
    source = Source.model_validate(
        {"format": "huggingface", "path": folder, "text": "text", "shuffle": False, "options": options}
    )
    reader = SourceReader("hub", source, tmp_path, tmp_path / "cache", 0)
    blocks = [reader.read_extent(number) for number in range(len(reader.index.extents))]
    return [text for rows in blocks for text in rows.columns["text"]], reader


def test_save_to_disk_with_splits(tmp_path):
    saved(tmp_path / "d" / "train", ["a", "b", "c", "d"], "train")
    saved(tmp_path / "d" / "held out", ["e", "f"], "held out")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "held out"]}')
    assert texts_of("d", tmp_path)[0] == ["a", "b", "c", "d"]
    assert texts_of("d", tmp_path, split="held out")[0] == ["e", "f"]


def test_save_to_disk_of_one_split(tmp_path):
    saved(tmp_path / "d", ["a", "b"], None)
    assert texts_of("d/", tmp_path)[0] == ["a", "b"]


def test_formats_in_one_folder_and_a_move_keeps_the_order(tmp_path):
    (tmp_path / "d" / "data").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "d/data/train-00000-of-00001.parquet")
    (tmp_path / "d/README.md").write_text(header("dataset_info: {features: [{name: text, dtype: string}]}"))
    texts, before = texts_of("d", tmp_path)
    assert texts == ["a", "b"]
    assert before.index.names == ("data/train-00000-of-00001.parquet",)
    (tmp_path / "d").rename(tmp_path / "e")
    assert texts_of("e", tmp_path)[1].index.digest == before.index.digest


def test_csv(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text('text\n"a, b"\n')
    (tmp_path / "d/test.tsv").write_text("id\ttext\n1\tc\n")
    assert texts_of("d", tmp_path)[0] == ["a, b"]
    assert texts_of("d", tmp_path, split="test")[0] == ["c"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match="no-such-folder"):
        texts_of("no-such-folder", tmp_path)
