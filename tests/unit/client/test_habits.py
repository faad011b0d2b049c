"""What code written for a torch DataLoader says to a loader, and forks of the process that has one."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap

import pytest

from dataloader_client import DataServiceLoader
from dataloader_client.habits import POINTERS
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import Script
from real_job import STOP_S, environment

NOBODY = "127.0.0.1:1"


@pytest.fixture
def service():
    with JobThread(Script(num_steps=6)) as service:
        yield service


@pytest.mark.parametrize("name", sorted(POINTERS))
def test_arguments_of_torch_are_refused_with_a_pointer(name):
    with pytest.raises(TypeError, match=f"no such argument:\n  {name}: ") as caught:
        DataServiceLoader(NOBODY, **{name: 4})
    assert POINTERS[name] in str(caught.value)


@pytest.mark.parametrize("library", ["torch.utils.data", "torchdata.stateful_dataloader"])
def test_none_of_theirs_is_without_an_answer(library):
    module = pytest.importorskip(library)
    loader = getattr(module, "DataLoader", None) or module.StatefulDataLoader
    theirs = set(inspect.signature(loader).parameters) - {"self"}
    assert theirs <= set(POINTERS) | {"self"}


def test_all_of_them_are_told_at_once_and_slips_corrected():
    with pytest.raises(TypeError) as caught:
        DataServiceLoader(NOBODY, batch_size=4, prefetchh=2, nonsense=1)
    text = str(caught.value)
    assert "global_batch" in text
    assert "prefetchh: did you mean prefetch=?" in text
    assert "nonsense: there are mesh, rank," in text


def test_attributes_are_absent_with_a_pointer(service):
    with DataServiceLoader(service.address) as loader:
        for name in ("sampler", "batch_size", "dataset", "num_workers", "drop_last"):
            assert not hasattr(loader, name)
            with pytest.raises(AttributeError, match="has no attribute") as caught:
                getattr(loader, name)
            assert POINTERS[name] in str(caught.value)
        with pytest.raises(AttributeError, match="no attribute 'bogus'$"):
            getattr(loader, "bogus")  # noqa: B009 - an expression alone would be useless
        with pytest.raises(TypeError, match="islice"):
            len(loader)


def test_set_epoch_changes_nothing(service):
    with DataServiceLoader(service.address) as loader:
        before = loader.state_dict()
        loader.set_epoch(3)
        assert loader.state_dict() == before
        assert next(loader).step == 0


FORK = """
import faulthandler, os, sys
from dataloader_client import DataServiceError, DataServiceLoader

loader = DataServiceLoader(sys.argv[1], prefetch=2)
first = next(loader)
for _ in range(3):  # while the prefetching thread is at any of its work
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            next(loader)
        except DataServiceError as error:
            assert "does not survive a fork" in str(error), error
        loader.close()  # the parent's goes on
        with DataServiceLoader(sys.argv[1]) as mine:
            batch = next(mine)
        os._exit(7 if (batch.step, batch.microbatch, batch.digest) == (0, 0, first.digest) else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert next(loader).microbatch == 1
child = os.fork()
if child == 0:
    sys.exit(9)  # with all that runs at exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
assert len(list(loader)) == 6 * 8 - 2
print("fine")
"""


def run(code: str, address: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), address],
        capture_output=True,
        text=True,
        timeout=4 * STOP_S,
        env=environment(**extra),
        check=False,
    )


def test_a_forked_child_is_told_and_may_make_its_own_while_the_parent_goes_on(service):
    done = run(FORK, service.address)
    assert done.stdout == "fine\n", done.stderr


def test_a_torch_worker_is_told(service):
    pytest.importorskip("torch")
    code = """
    import sys, torch.utils.data
    from dataloader_client import DataServiceLoader

    class Around(torch.utils.data.IterableDataset):
        def __init__(self, loader): self.loader = loader
        def __iter__(self): return iter(self.loader)

    loader = DataServiceLoader(sys.argv[1])
    next(loader)
    workers = torch.utils.data.DataLoader(
        Around(loader), num_workers=1, batch_size=None, multiprocessing_context="fork"
    )
    try:
        next(iter(workers))
    except Exception as error:
        print("does not survive a fork" in str(error), "needs no DataLoader workers" in str(error))
    print(next(loader).microbatch)
    """
    done = run(code, service.address)
    assert done.stdout == "True True\n1\n", done.stderr


def test_grpcs_own_fork_support_is_warned_of(service, monkeypatch):
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "1")
    with pytest.warns(RuntimeWarning, match="a fork of this process hangs"):
        DataServiceLoader(service.address).close()
    monkeypatch.setitem(os.environ, "GRPC_ENABLE_FORK_SUPPORT", "0")
    DataServiceLoader(service.address).close()
