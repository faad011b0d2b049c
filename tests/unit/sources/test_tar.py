"""Our walk of tar headers against the standard library's, on archives of every dialect."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.sources.tar import BLOCK, Damaged, check_header, members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
names = st.text(st.sampled_from("abé猫./ -1"), min_size=1, max_size=150).filter(lambda n: n.strip("/"))
entry = st.tuples(names, st.binary(max_size=1500), st.sampled_from("ffffdsh"))
KINDS = {"d": tarfile.DIRTYPE, "s": tarfile.SYMTYPE, "h": tarfile.LNKTYPE}


def archive(entries, dialect, pax_headers=None):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[dialect], pax_headers=pax_headers) as tar:
        for name, data, kind in entries:
            info = tarfile.TarInfo(name)
            if kind == "f":
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = KINDS[kind], "target" * (40 if dialect != "ustar" else 1)
                tar.addfile(info)
    return buffer.getvalue()


def walk(data, offset=0):
    return list(members(lambda at, length: data[at : at + length], offset, len(data)))


@settings(max_examples=150, deadline=None)
@given(st.lists(entry, min_size=1, max_size=8), st.sampled_from(sorted(FORMATS)), st.booleans())
def test_same_members_as_tarfile(entries, dialect, global_header):
    if dialect == "ustar":
        entries = [
            (name.encode()[:90].decode(errors="ignore") or "x", data, kind) for name, data, kind in entries
        ]
    headers = {"comment": "猫 all of them"} if global_header and dialect == "pax" else None
    data = archive(entries, dialect, headers)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(info.name.rstrip("/"), info.offset_data, info.size) for info in tar if info.isreg()]
    found = walk(data)
    assert [(member.name.rstrip("/"), member.data, member.size) for member in found] == expected
    for member in found:  # a range that begins with a member's own headers gives the same member
        (first, *_) = walk(data[: member.stop], member.start)
        assert first == member


def test_ustar_prefix():
    name = "d" * 120 + "/" + "f" * 90 + ".txt"
    (member,) = walk(archive([(name, b"x", "f")], "ustar"))
    assert member.name == name


def test_sizes_in_base_256_and_pax():
    header = tarfile.TarInfo("big.bin")
    header.size = 9 * 2**30
    gnu = header.tobuf(tarfile.GNU_FORMAT)
    pax = header.tobuf(tarfile.PAX_FORMAT)
    for data in (gnu, pax):
        with pytest.raises(Damaged, match=f"cut inside 'big.bin': {9 * 2**30} bytes"):
            walk(data)
        (member,) = members(lambda at, length, data=data: data[at : at + length], 0, 10 * 2**30)
        assert member.size == 9 * 2**30


def test_a_size_of_a_folder_or_link_is_a_hint_without_data():
    data = b""
    for kind in (tarfile.DIRTYPE, tarfile.LNKTYPE):
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, 4096
        data += header.tobuf(tarfile.USTAR_FORMAT)
    assert [member.name for member in walk(data + archive([("a.txt", b"x", "f")], "ustar"))] == ["a.txt"]


def test_names_that_are_not_utf8_can_be_printed():
    data = archive([("a.txt", b"x", "f")], "gnu")
    block = bytearray(data[:BLOCK])
    block[0] = 0xE9
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (member,) = walk(bytes(block) + data[BLOCK:])
    assert member.name == "\\xe9.txt"


def test_signed_checksums_of_old_writers():
    block = bytearray(tarfile.TarInfo("é.txt").tobuf(tarfile.USTAR_FORMAT))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(byte - 256 * (byte > 127) for byte in block)
    assert walk(bytes(block))[0].name == "é.txt"


def test_damage_is_told_from_the_end():
    data = bytearray(archive([(f"{i}.txt", b"x" * 600, "f") for i in range(4)], "gnu"))
    (first, second, third, _) = walk(data)
    data[third.start + 3] ^= 1
    found = []
    with pytest.raises(Damaged, match=f"byte {third.start} .*checksum"):
        for member in members(lambda at, length: bytes(data[at : at + length]), 0, len(data)):
            found.append(member)
    assert found == [first, second]


@pytest.mark.parametrize(
    "payload", [b"12 path=", b"99 path=a\n", b"x path=a\n", b"0 path=a\n", b" ", b"5 " + b"9" * 50]
)
def test_broken_pax_headers(payload):
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(payload)
    with pytest.raises(Damaged, match="pax"):
        walk(header.tobuf(tarfile.USTAR_FORMAT) + payload.ljust(BLOCK, b"\0"))


def test_an_extended_header_of_gigabytes_is_not_read():
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**30
    data = header.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(Damaged, match="extended header"):
        list(members(lambda at, length: data[at : at + length], 0, 2**31))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_noise_ends(data):
    try:
        walk(data)
        check_header(data[:BLOCK])
    except Damaged:
        pass
