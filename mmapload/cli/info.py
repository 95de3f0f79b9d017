"""`mmapload info`: what is in a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mmapload.cli.parsing import UsageError, whole_number
from mmapload.cli.tables import table
from mmapload.errors import printable
from mmapload.sizes import format_size

if TYPE_CHECKING:
    import argparse

    import numpy.typing as npt

    from mmapload.notes import DtypeNote
    from mmapload.store import Store

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

_MOST_CLASSES: Final = 10

HELP: Final = "say what is in a store"
USAGE: Final = "mmapload info STORE [--json] [--sample I]"
DESCRIPTION: Final = """\
Say what is in a store: samples, fields, sizes, chunks and batches, how it was made, and how much of it fits
in this machine's memory. Only metadata is read, and with --sample the chunk that holds it."""
EXAMPLES: Final = """\
examples:
  mmapload info train.mml
  mmapload info train.mml --sample 4711
  mmapload info train.mml --json | jq .samples"""


_LONGEST_TEXT: Final = 40
"""Characters of a text that are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("store", metavar="STORE", help="the store's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object; sizes are in bytes")
    parser.add_argument(
        "--sample",
        type=whole_number,
        metavar="I",
        help="also say of sample I (the first is 0) where it came from, where it lies, and what is in it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from mmapload.store import open_store

    store = open_store(arguments.store)
    if arguments.sample is not None and arguments.sample >= len(store):
        raise UsageError(f"there is no sample {arguments.sample}: {store.path} has {len(store):,}, from 0 on")
    told = _describe(store)
    if arguments.sample is not None:
        told["sample"] = _describe_sample(store, arguments.sample)
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        print(_store_text(told))
        if arguments.sample is not None:
            print("\n" + _sample_text(told["sample"]))
    return 0


def _describe(store: Store) -> dict[str, Any]:
    from mmapload.cli.files import survey
    from mmapload.cli.machine import describe_machine

    layout = store.layout
    fields, missing = [], 0
    for field in layout.fields:
        files = survey(store, field)
        missing += store.count_files(field) - files.present
        decoded = store.decoded_nbytes(field)
        fields.append(
            {
                "name": field.name,
                "dtype": field.values_name,
                "shape": list(field.values_shape),
                "codec": field.codec.name,
                "sample_bytes": store.sample_nbytes(field),
                "chunk_bytes": int(store.chunk_nbytes([field]).max())
                if field.is_ragged
                else field.chunk_nbytes,
                "decoded_bytes": decoded,
                "disk_bytes": files.nbytes,
            }
        )
    return {
        "path": store.path,
        "fingerprint": store.fingerprint,
        "samples": layout.samples,
        "batch_size": layout.batch_size,
        "batches": -(-layout.samples // layout.batch_size),
        "last_batch_samples": (layout.samples - 1) % layout.batch_size + 1,
        "chunk_length": layout.chunk_length,
        "chunks": layout.chunks,
        "last_chunk_samples": layout.chunk_samples(layout.chunks - 1),
        "missing_chunk_files": missing,
        "has_names": layout.has_names,
        "source": dict(layout.source),
        "sample_bytes": sum(field["sample_bytes"] for field in fields),
        "decoded_bytes": sum(field["decoded_bytes"] for field in fields),
        "disk_bytes": sum(field["disk_bytes"] for field in fields),
        "fields": fields,
        "here": describe_machine(store),
    }


def _store_text(told: dict[str, Any]) -> str:
    from mmapload.cli.machine import machine_rows

    per_chunk = told["chunk_length"] // told["batch_size"]
    chunks = f"{told['chunks']:,} of {told['chunk_length']:,} samples ({per_chunk:,} x batch size)"
    heads = [
        ("store", told["path"]),
        ("samples", f"{told['samples']:,}, {format_size(told['sample_bytes'])} {_each(told)}"),
        ("batches", _counted(told["batches"], told["batch_size"], told["last_batch_samples"])),
        ("chunks", chunks + _tail(told["chunk_length"], told["last_chunk_samples"])),
        ("source", _source_text(told)),
        ("fingerprint", told["fingerprint"]),
    ]
    heads += machine_rows(told["here"], told["chunks"])
    if told["missing_chunk_files"]:
        missing = told["missing_chunk_files"]
        files, them = ("chunk file", "it") if missing == 1 else ("chunk files", "them")
        heads.append(("missing", f"{missing:,} {files}; `mmapload verify` names {them}"))
    sizes = ("sample_bytes", "chunk_bytes", "decoded_bytes", "disk_bytes")
    rows: list[tuple[str, ...]] = [
        ("field", "dtype", "shape", "codec", "sample", "chunk", "decoded", "on disk")
    ]
    for field in told["fields"]:
        named = (field["name"], field["dtype"], _shape_text(field["shape"]), field["codec"])
        rows.append((*named, *(format_size(field[size]) for size in sizes)))
    totals = (sum(field[size] for field in told["fields"]) for size in sizes)
    rows.append(("total", "", "", "", *(format_size(total) for total in totals)))
    return table(heads, left=2) + "\n\n" + table(rows, left=4)


def _each(told: dict[str, Any]) -> str:
    return "on average" if any(-1 in field["shape"] for field in told["fields"]) else "each"


def _shape_text(shape: list[int]) -> str:
    """Write a shape; axes along which samples differ as stars."""
    return str(tuple(shape)).replace("-1", "*")


def _counted(count: int, length: int, last: int) -> str:
    return f"{count:,} of {length:,} samples" + _tail(length, last)


def _tail(length: int, last: int) -> str:
    return "" if last == length else f", the last one of {last:,}"


def _source_text(told: dict[str, Any]) -> str:
    made = told["source"]
    parts = [str(made.get("kind", "unknown"))]
    if made.get("skipped"):
        parts.append(f"{made['skipped']} bad samples left out")
    shuffle = made.get("shuffle")
    parts.append("in its own order" if shuffle is None else f"shuffled with seed {shuffle}")
    classes = made.get("classes")
    for name, named in classes.items() if isinstance(classes, dict) else ():
        most = [f"{number} for {each}" for number, each in enumerate(list(named)[:_MOST_CLASSES])]
        parts.append(f"{name} is {', '.join(most)}{', ...' if len(named) > _MOST_CLASSES else ''}")
    fill = made.get("fill")
    for name, value in fill.items() if isinstance(fill, dict) else ():
        shown = "an array" if isinstance(value, dict) else json.dumps(value).strip('"')
        parts.append(f"{name} filled with {shown} where it was missing")
    parts.append(f"names of samples {'kept' if told['has_names'] else 'not kept'}")
    return ", ".join(parts)


def _describe_sample(store: Store, sample: int) -> dict[str, Any]:
    chunk, row = divmod(sample, store.layout.chunk_length)
    arrays = {name: store.read_chunk(name, chunk)[row] for name in store.fields}
    return {
        "index": sample,
        "name": store.sample_name(sample),
        "chunk": chunk,
        "row": row,
        "fields": [
            {
                "name": field.name,
                "dtype": field.values_name,
                "shape": list(arrays[field.name].shape),
                **_extremes(arrays[field.name], field.meaning),
            }
            for field in store.layout.fields
        ],
    }


def _extremes(array: npt.NDArray[Any], meaning: DtypeNote | None) -> dict[str, Any]:
    """Return least, greatest and how many are NaN, or no time; None where there is no such thing."""
    import numpy as np

    found = np.asarray(array)
    if meaning is not None and meaning.dtype == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    nans = int(np.isnan(found).sum()) if found.dtype.kind in "fcmM" else 0
    if found.dtype.kind == "c" or found.size == nans:
        return {"min": None, "max": None, "nan": nans}
    if found.dtype.kind in "mM":
        times = found[~np.isnan(found)]
        return {"min": str(times.min()), "max": str(times.max()), "nan": nans}
    if found.dtype.kind in "US":
        texts = found.reshape(-1).tolist()
        return {"min": _text(min(texts)), "max": _text(max(texts)), "nan": 0}
    return {"min": _number(np.nanmin(found)), "max": _number(np.nanmax(found)), "nan": nans}


def _text(value: str | bytes) -> str:
    text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
    return printable(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "...")


def _number(value: Any) -> Any:
    """Turn a scalar into what JSON can say; infinities into text."""
    plain = value.item()
    return str(plain) if plain in {float("inf"), float("-inf")} else plain


def _sample_text(told: dict[str, Any]) -> str:
    heads = [
        ("sample", f"{told['index']:,}"),
        ("name", "not kept" if told["name"] is None else told["name"]),
        ("chunk", f"{told['chunk']:,}, row {told['row']:,}"),
    ]
    rows = [("field", "dtype", "shape", "min", "max", "NaN")]
    for field in told["fields"]:
        numbers = (_short(field["min"]), _short(field["max"]), f"{field['nan']:,}")
        rows.append((field["name"], field["dtype"], str(tuple(field["shape"])), *numbers))
    return table(heads, left=2) + "\n\n" + table(rows, left=3)


def _short(value: float | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
