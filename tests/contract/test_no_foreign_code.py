"""What comes over the wire, out of a file or from a store is data: no code of the packages runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_job import REPO

PACKAGES = (
    REPO / "dataloader_svc",
    REPO / "clients" / "dataloader_client",
    REPO / "balancers" / "dataloader_balancers",
)
MODULES = frozenset(
    {"pickle", "_pickle", "pickletools", "marshal", "shelve", "code", "codeop"}
    | {"dill", "cloudpickle", "joblib", "jsonpickle"}
)
"""Those that make objects or code of bytes."""

PROCESSES = ("multiprocessing", "concurrent.futures.process", "concurrent.futures.ProcessPoolExecutor")
"""They pickle what they pass on; our own processes speak JSON and raw bytes."""

PLAIN = ("multiprocessing.shared_memory", "multiprocessing.resource_tracker")
"""Parts of them that don't."""

BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
CALLS = frozenset(
    {
        "yaml.load",
        "yaml.load_all",
        "yaml.full_load",
        "yaml.unsafe_load",
        "torch.load",
        "os.system",
        "os.popen",
        "numpy.fromregex",
    }
)
IMPORTERS = {
    "clients/dataloader_client/codecs.py": "zstandard and lz4",
    "dataloader_svc/cli/app.py": "a command of the list COMMANDS",
    "dataloader_svc/cli/quarantine.py": "a command of its list",
    "dataloader_svc/config/code_import.py": "module:function of the user's own configuration",
    "dataloader_svc/media/video.py": "decord",
    "dataloader_svc/media/worker_main.py": "the module that the loader's own command line names",
    "dataloader_svc/sources/mds_index.py": "xxhash",
    "dataloader_svc/store/redis.py": "redis",
    "dataloader_svc/testing/writers/__init__.py": "the writers of the package",
}
"""Files that import by name, and whose names those are."""


def findings(path: str, text: str) -> Iterator[str]:
    """What of a module could run foreign code."""
    for node in ast.walk(ast.parse(text)):
        for module in _imported(node):
            if module.partition(".")[0] in MODULES:
                yield f"{path}:{node.lineno}: imports {module}"
            if _within(module, PROCESSES) and not _within(module, PLAIN) and "/testing/" not in path:
                yield f"{path}:{node.lineno}: imports {module}, which pickles"
        if isinstance(node, ast.Call):
            yield from (f"{path}:{node.lineno}: {what}" for what in _called(path, node))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _within(module: str, parents: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{parent}.") for parent in parents)


def _called(path: str, node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in BUILTINS or name in {f"builtins.{builtin}" for builtin in BUILTINS}:
        yield f"calls {name}"
    if name in CALLS:
        yield f"calls {name}"
    if name in ("np.load", "numpy.load") and arguments.get("allow_pickle") != "False":
        yield f"calls {name} without allow_pickle=False"
    if arguments.get("allow_pickle", "False") != "False":
        yield f"calls {name} with allow_pickle"
    if arguments.get("shell", "False") != "False":
        yield f"calls {name} with shell={arguments['shell']}"
    if name in ("importlib.import_module", "import_module") and path not in IMPORTERS:
        yield f"calls {name}, and is not in IMPORTERS"


def sources() -> list[tuple[str, str]]:
    files = [file for package in PACKAGES for file in sorted(package.rglob("*.py"))]
    return [(str(file.relative_to(REPO)), file.read_text()) for file in files if "_pb" not in file.parts]


def test_nothing_runs_what_it_reads() -> None:
    found = [line for path, text in sources() for line in findings(path, text)]
    assert found == []


def test_what_imports_by_name_is_listed() -> None:
    importing = {path for path, text in sources() if "import_module(" in text}
    assert importing == set(IMPORTERS)
    assert not [path for path in importing if "rpc" in Path(path).parts or "constructor" in Path(path).parts]


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing",
        "from concurrent.futures import ProcessPoolExecutor",
        "from multiprocessing import connection, shared_memory",
        "from multiprocessing.pool import Pool",
        "eval('1')",
        "import builtins; builtins.exec('1')",
        "__import__('os')",
        "np.load(file)",
        "np.load(file, allow_pickle=True)",
        "np.save(file, a, allow_pickle=unknown)",
        "yaml.load(text, Loader)",
        "torch.load(file)",
        "subprocess.run(text, shell=True)",
        "importlib.import_module(name)",
    ],
)
def test_it_would_be_found(text: str) -> None:
    assert list(findings("dataloader_svc/x.py", text))


@pytest.mark.parametrize(
    "text",
    [
        "re.compile('x')",
        "ast.parse(t, mode='eval')",
        "np.load(f, allow_pickle=False)",
        "self.eval(1)",
        "from multiprocessing import shared_memory",
        "from multiprocessing.shared_memory import SharedMemory",
    ],
)
def test_what_is_harmless_is_let_be(text: str) -> None:
    assert not list(findings("dataloader_svc/x.py", text))
