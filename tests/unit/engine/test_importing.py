from __future__ import annotations

import gc

import pytest

from dataloader_svc.engine.importing import uncollected


def test_nothing_is_collected_meanwhile_and_then_again() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), uncollected():
        raise ModuleNotFoundError
    assert gc.isenabled()
