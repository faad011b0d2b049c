"""Write the reference pages that come from the code, or with --check say whether they are fresh.

configuration.md  from `dataloader_svc/config/schema/`: every field, its type, default and meaning
"""

from __future__ import annotations

import argparse
import sys
import types
import typing
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from dataloader_svc.config import schema

HERE = Path(__file__).resolve().parent

SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("The job", schema.Config),
    ("tokenizer_options", schema.TokenizerOptions),
    ("global_batch", schema.GlobalBatch),
    ("sources.NAME", schema.Source),
    ("sources.NAME.video", schema.VideoFields),
    ("sources.NAME.interleaved", schema.Interleaved),
    ("sources.NAME.preference", schema.Preference),
    ("sources.NAME.shuffle", schema.Shuffle),
    ("mixture", schema.Mixture),
    ("mixture.schedule", schema.MixtureStep),
    ("mixture.adaptive", schema.Adaptive),
    ("evaluation", schema.Evaluation),
    ("images", schema.Images),
    ("media_tokens", schema.MediaTokens),
    ("markers", schema.Markers),
    ("strategy", schema.Strategy),
    ("strategy.wait", schema.Wait),
    ("strategy.limits", schema.Limits),
    ("strategy.ranks", schema.Ranks),
    ("strategy.cost.llm", schema.LlmCostConfig),
    ("strategy.cost.encoder", schema.EncoderCostConfig),
    ("mesh", schema.Mesh),
    ("planner", schema.Planner),
    ("loader", schema.Loader),
    ("constructor", schema.Constructor),
    ("storage", schema.StorageSettings),
    ("wire", schema.Wire),
    ("security", schema.Security),
    ("security.tls", schema.Tls),
]

HEAD = """\
# Configuration

Generated from `dataloader_svc/config/schema/` by `make docs`. A field that is not listed is an error, with the
nearest known name. `${VAR}` and `${VAR:-default}` come from the environment. Sizes are written `512MiB`, `4GiB`.
Relative paths start from the folder of the file. `dataloader-svc check FILE` finds all problems of a file at once.

Which settings may change when a job resumes: mesh, global batch, weights, packing, memory, processes, and sources that
come or go. Which may not, because the same sample would have other content: `seed`, `tokenizer`, `images`,
`media_tokens`, `markers`, `eos`, `bos`, `tokenizer_backend`, `tokenizer_options`, and of a source its `format`, field
names, `shuffle`, `extent`, `chat_template`, `control_words`, `transforms` (and the code of a `map`) and what its files hold; `sequence_length`
too, where a source has preference pairs that `too_long: truncate` shortens. The error names the field.
"""


def type_name(annotation: Any) -> str:
    """A field's type as a person would say it."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return "size" if annotation == schema.Bytes else type_name(args[0])
    if origin is typing.Literal:
        return " \\| ".join(f"`{str(arg).lower() if isinstance(arg, bool) else arg}`" for arg in args)
    if origin in (typing.Union, types.UnionType):
        return " \\| ".join(type_name(arg) for arg in args if arg is not type(None))
    if origin is list:
        return f"list of {type_name(args[0])}"
    if origin is dict:
        return "mapping" if args[1] is Any else f"mapping of {type_name(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {str: "text", SecretStr: "text", int: "integer", float: "number", bool: "`true` \\| `false`"}.get(
        annotation, str(annotation)
    )


def limits(info: FieldInfo) -> str:
    words = []
    for item in info.metadata:
        if isinstance(item, Gt):
            words.append(f"> {item.gt}")
        elif isinstance(item, Ge):
            words.append(f">= {item.ge}")
        elif isinstance(item, Le):
            words.append(f"<= {item.le}")
    return f" ({', '.join(words)})" if words else ""


def default(info: FieldInfo) -> str:
    if info.is_required():
        return "**required**"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    if value is None:
        return "-"
    if any(meta for meta in info.metadata if "BeforeValidator" in type(meta).__name__):
        for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"`{value // size}{unit}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def configuration() -> str:
    parts = [HEAD]
    for title, model in SECTIONS:
        heading = title if title == "The job" else f"`{title}`"
        doc = (model.__doc__ or "").strip().replace("\n", " ")
        parts.append(
            f"\n## {heading}\n\n{' '.join(doc.split())}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
        )
        for name, info in model.model_fields.items():
            shown = "NAME" if (model, name) == (schema.MixtureStep, "weights") else name
            kind = "number" if shown == "NAME" else type_name(info.annotation) + limits(info)
            meaning = "Weight of the source of that name." if shown == "NAME" else info.description or ""
            fallback = "0" if shown == "NAME" else default(info)
            parts.append(f"| `{shown}` | {kind} | {fallback} | {meaning.replace('|', chr(92) + '|')} |\n")
    return "".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    args = parser.parse_args()
    pages = {HERE / "configuration.md": configuration()}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if args.check:
        for path in stale:
            print(f"stale: docs/{path.name}; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path])
    print(f"{len(pages)} pages, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
