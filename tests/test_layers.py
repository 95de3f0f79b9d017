"""The floor plan: who may import whom, and what importing the package costs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import mmapload

ROOT = Path(mmapload.__file__).parent

LAYERS = [
    ["errors", "sizes", "spent", "stages", "frames", "checks", "otherformats"],
    ["codecs", "budget", "progress", "notes", "fieldnames"],
    ["layout", "strictjson", "chains", "padding"],
    ["extents"],
    ["metadata", "chunkfile", "order", "seals", "sources", "mappings", "scattered"],
    ["ragged", "sources.hdf5", "sources.images", "sources.zarr", "sources.torchfiles"],
    ["sources.matlab", "sources.members"],
    ["sources.tars"],
    ["sources.kinds"],
    ["buffers", "mappool", "opening", "passes", "presence", "reserved", "spans", "state"],
    ["elements"],
    ["checksums", "mixedstate", "verifying"],
    ["store"],
    ["measures", "writer", "readers", "room", "schedule", "selection", "streams"],
    ["forms", "joining", "preprocessing", "residency", "exporting"],
    ["served"],
    ["gather", "batches", "ranks", "checking"],
    ["windows", "subsets", "weights"],
    ["workers", "quality", "epochs", "following"],
    ["views"],
    ["dataset", "grouping"],
    ["resuming", "mixed"],
    ["samplers", "mixing", "devices", "pipeline", "stats"],
    ["batchsampler", "finishing", "plans"],
    ["serving"],
    ["loader"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
"""Modules and packages from the bottom up: each imports from layers below its own, and from itself."""

OWNERS = {
    "torch": {
        *("batches", "served", "ranks", "workers", "dataset", "samplers", "devices", "finishing", "serving"),
        *("loader", "batchsampler", "bench", "forms", "resuming", "mixed", "mixing", "sources.torchfiles"),
    },
    "zarr": {"writer", "sources.zarr"},
    "h5py": {"sources.hdf5"},
    "PIL": {"sources.images"},
    "scipy": {"sources.matlab"},
    "numcodecs": {"codecs"},
    "crc32c": {"codecs", "writer"},
    "isal": {"sources"},
    "tqdm": {"progress", "cli"},
    "matplotlib": {"quality"},
}
"""Who may import what is neither numpy nor in the standard library."""

RESTRICTED = "sources.unpickling"
"""The one module that reads pickles, and calls nothing that they name."""

MOST_LINES = 320

PLACE = {unit: level for level, layer in enumerate(LAYERS) for unit in layer}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module but the package's own, by its name below the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def unit(module: str) -> str:
    """Which entry of the plan a module belongs to: the longest that names it or a package above it."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in PLACE), parts[0])


def imports(tree: ast.Module) -> list[str]:
    """Full names of what a module imports, wherever in it that stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def own_imports(name: str) -> list[str]:
    """Modules of the package that a module imports, by their names below the package."""
    found = []
    for imported in imports(modules()[name]):
        package, _, below = imported.partition(".")
        if package == "mmapload" and below != "__version__":
            found.append(below)
    return found


def test_every_module_has_its_place_and_every_place_its_module():
    assert {unit(name) for name in modules()} == set(PLACE)


@pytest.mark.parametrize("name", modules())
def test_imports_go_downwards_only(name):
    own = unit(name)
    for imported in own_imports(name):
        other = unit(imported)
        assert other in PLACE, f"{name} imports {imported} through the package: import it where it is defined"
        assert other == own or PLACE[other] < PLACE[own], f"{name} imports {imported}, which is not below it"


@pytest.mark.parametrize("name", modules())
def test_each_dependency_is_imported_by_its_owners_only(name):
    for imported in imports(modules()[name]):
        package = imported.partition(".")[0]
        if package in {"mmapload", "numpy"} or package in sys.stdlib_module_names:
            continue
        assert unit(name) in OWNERS.get(package, ()), f"{name} imports {imported}"


@pytest.mark.parametrize("name", modules())
def test_no_module_asserts_unpickles_or_runs_text(name):
    """Assertions vanish with -O; pickles, `eval` and `exec` run what a file says."""
    tree = modules()[name]
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    unpickling = set() if name == RESTRICTED else {"pickle"}
    found = {imported.partition(".")[0] for imported in imports(tree)}
    assert not found & {"marshal", "shelve", *unpickling}
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {call.id for call in calls if isinstance(call, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__"}
    # Our option goes by numpy's name; numpy is never given it.
    numpys = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and is_numpys(call.func)]
    assert "allow_pickle" not in {keyword.arg for call in numpys for keyword in call.keywords}


def is_numpys(function: ast.expr) -> bool:
    """Whether a function is named as one of numpy's."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in {"np", "numpy"}


@pytest.mark.parametrize("name", modules())
def test_a_module_is_short_enough_to_be_read_at_once(name):
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    "use",
    [
        "import mmapload",
        "import mmapload; mmapload.open_store; mmapload.Store; mmapload.ChunkError",
        "import mmapload; dir(mmapload); mmapload.__all__; hasattr(mmapload, 'nothing')",
        "import mmapload.order, mmapload.readers, mmapload.residency",
        "import mmapload.sources.npz, mmapload.cli",
        "import mmapload; mmapload.preprocess",
        "import mmapload; mmapload.shuffle_quality",
    ],
)
def test_what_needs_no_torch_zarr_or_numcodecs_imports_none(use):
    heavy = "{'torch', 'zarr', 'numcodecs', 'tqdm', 'tensorstore'}"
    run(f"import sys; {use}; found = {heavy} & set(sys.modules); sys.exit(str(found) if found else 0)")


def test_importing_the_package_does_not_import_numpy():
    run("import sys, mmapload; sys.exit('numpy' in sys.modules)")


def test_the_torch_side_does_without_zarr():
    run("import sys, mmapload; mmapload.ChunkDataLoader; sys.exit('zarr' in sys.modules)")


@pytest.mark.parametrize("name", mmapload.__all__)
def test_every_public_name_is_there_documented_and_known_to_dir(name):
    found = getattr(mmapload, name)
    assert inspect.getdoc(found)
    assert name in dir(mmapload)


@pytest.mark.parametrize("name", mmapload.__all__)
def test_a_public_name_is_no_module_whatever_is_imported_first(name):
    """A module of the same name would take the name's place as soon as it is imported."""
    assert name not in modules()


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'ChunkLoader'"):
        _ = mmapload.ChunkLoader


@pytest.mark.parametrize("name", modules())
def test_all_names_that_a_module_offers_are_there_and_documented(name):
    module = importlib.import_module(f"mmapload.{name}")
    assert inspect.getdoc(module)
    for offered in getattr(module, "__all__", ()):
        found = getattr(module, offered)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), f"{name}.{offered} says nothing of itself"


@pytest.mark.parametrize("name", ["", *(each for each in modules() if each != "__main__")])
def test_the_examples_in_docstrings_are_true(name, capsys):
    module = importlib.import_module(f"mmapload.{name}".rstrip("."))
    failed, _ = doctest.testmod(module)
    assert failed == 0, capsys.readouterr().out


def test_all_modules_are_found_by_the_import_system_too():
    """A folder without `__init__.py` would be left out of the wheel."""
    walked = {each.name.removeprefix("mmapload.") for each in pkgutil.walk_packages([ROOT], "mmapload.")}
    assert walked == set(modules())
