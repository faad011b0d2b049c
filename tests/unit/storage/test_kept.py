from dataloader_svc.storage.kept import KeptParts


def test_a_part_is_found_for_the_version_it_was_made_from():
    kept = KeptParts(100)
    kept.keep("a", 1, "footer", 10)
    assert kept.get("a", 1) == "footer"
    assert kept.get("a", 2) is None
    assert kept.get("b", 1) is None
    kept.keep("a", 2, "new footer", 30)
    assert (kept.get("a", 1), kept.get("a", 2)) == (None, "new footer")
    assert kept.held == 30


def test_those_least_recently_used_make_room():
    kept = KeptParts(100)
    for name in "abc":
        kept.keep(name, 0, name, 30)
    kept.get("a", 0)
    kept.keep("d", 0, "d", 40)
    assert [name for name in "abcd" if name in kept] == ["a", "c", "d"]
    assert kept.held == 100


def test_a_part_larger_than_the_limit_is_not_kept():
    kept = KeptParts(100)
    kept.keep("a", 0, "a", 50)
    kept.keep("b", 0, "b", 50)
    kept.keep("a", 1, "larger", 101)
    assert [name for name in "ab" if name in kept] == ["b"]
    assert kept.held == 50
