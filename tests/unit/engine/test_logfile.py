"""The log of a role over its lives: appended to, shown from its end, rotated when it is large."""

import os

from dataloader_svc.engine import logfile
from dataloader_svc.engine.logfile import LogFile


def live(log, text):
    with log.life("loader-0") as output:
        os.write(output, text)


def test_no_file_is_no_lines(tmp_path):
    assert LogFile(tmp_path / "logs" / "x.log").tail(20) == []


def test_lives_follow_each_other_and_the_last_can_be_told_apart(tmp_path):
    log = LogFile(tmp_path / "logs" / "x.log")
    live(log, b"a\nb\n")
    live(log, b"c\nd\ne")
    assert log.tail(100) == ["--- loader-0 starts", "a", "b", "--- loader-0 starts", "c", "d", "e"]
    assert log.tail(100, this_life=True) == ["c", "d", "e"]
    assert log.tail(2) == ["d", "e"]
    assert log.tail(0) == []


def test_an_earlier_run_is_kept(tmp_path):
    live(LogFile(tmp_path / "x.log"), b"before\n")
    log = LogFile(tmp_path / "x.log")
    live(log, b"now\n")
    assert log.tail(3) == ["before", "--- loader-0 starts", "now"]
    assert log.tail(3, this_life=True) == ["now"]


def test_bytes_that_are_no_text_and_very_long_lines(tmp_path):
    log = LogFile(tmp_path / "x.log")
    live(log, b"x" * 200_000 + b"\nbad \xff\xfe\n")
    *_, long, bad = log.tail(5)
    assert bad == "bad ��"
    assert 0 < len(long) <= logfile.TAIL_BYTES


def test_a_large_file_is_rotated_when_a_life_begins_and_one_former_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(logfile, "MAX_BYTES", 100)
    log = LogFile(tmp_path / "x.log")
    for number in range(5):
        live(log, b"%d" % number * 150 + b"\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.log", "x.log.1"]
    assert log.tail(5) == ["--- loader-0 starts", "4" * 150]
    assert "3" * 150 in (tmp_path / "x.log.1").read_text()


def test_a_note_that_can_not_be_written_is_lost_without_a_word(tmp_path):
    LogFile(tmp_path / "no folder" / "x.log").note("hello")
    assert not (tmp_path / "no folder").exists()
