"""The codec chain of a field as `zarr.json` lists it: written for a codec, and read, strictly, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mmapload.codecs import BloscCodec, Codec, RawCodec, ZstdCodec
from mmapload.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

__all__ = ["codec_chain", "parse_chain"]


def codec_chain(codec: Codec, itemsize: int) -> list[dict[str, Any]]:
    """Return the list under `codecs` in `zarr.json`.

    Examples
    --------
    >>> codec_chain(RawCodec(), itemsize=4)
    [{'name': 'bytes', 'configuration': {'endian': 'little'}}, {'name': 'crc32c'}]
    """
    first: dict[str, Any] = {"name": "bytes"}
    if itemsize > 1:
        first["configuration"] = {"endian": "little"}
    compressor = codec.configuration
    return [first, *([compressor] if compressor else []), {"name": "crc32c"}]


def parse_chain(chain: object, itemsize: int) -> Codec:
    """Read the list under `codecs` in `zarr.json`; the inverse of `codec_chain`.

    Raises
    ------
    ValueError
        Saying what is not as the format wants it.
    """
    if not isinstance(chain, list) or not all(isinstance(entry, dict) for entry in chain):
        raise ValueError("codecs must be a list of objects")
    names = [entry.get("name") for entry in chain]
    if len(chain) not in {2, 3} or names[0] != "bytes" or names[-1] != "crc32c":
        raise ValueError(
            f"codecs must be bytes, at most one of zstd and blosc, and crc32c; found {shown(names)}"
        )
    endian = _settings(chain[0], {"endian"}).get("endian", "little" if itemsize == 1 else None)
    if endian != "little":
        raise ValueError(f"only little-endian bytes are supported, found {shown(endian)}")
    _settings(chain[-1], set())
    if len(chain) == 2:
        return RawCodec()
    parse = _PARSERS.get(names[1]) if isinstance(names[1], str) else None
    if parse is None:
        raise ValueError(f"the codec {shown(names[1])} is none of this format's: zstd, blosc")
    return parse(chain[1])


def _settings(entry: Mapping[str, Any], known: AbstractSet[str]) -> Mapping[str, Any]:
    """Return the configuration of a codec; any other key in it might change what the bytes mean."""
    name, settings = entry["name"], entry.get("configuration", {})
    foreign = [key for key in entry if key not in {"name", "configuration"}]
    if foreign:
        raise ValueError(f"{shown(foreign[0])} beside the configuration of {name} is none of this format's")
    if not isinstance(settings, dict):
        raise ValueError(f"the configuration of {name} must be an object, found {shown(settings)}")  # noqa: TRY004 - one kind of error for all bad metadata
    foreign = [key for key in settings if key not in known]
    if foreign:
        raise ValueError(f"{shown(foreign[0])} is no setting of {name} in this format")
    return settings


def _parse_zstd(entry: Mapping[str, Any]) -> Codec:
    settings = _settings(entry, {"level", "checksum"})
    with_checksum = settings.get("checksum", False)
    if not isinstance(with_checksum, bool):
        raise ValueError(f"zstd needs a boolean checksum, found {shown(with_checksum)}")  # noqa: TRY004 - as above
    return ZstdCodec(_integer(entry, "level", -(2**17), 22), with_checksum)


def _parse_blosc(entry: Mapping[str, Any]) -> Codec:
    settings = _settings(entry, {"typesize", "cname", "clevel", "shuffle", "blocksize"})
    cname, shuffle = settings.get("cname"), settings.get("shuffle")
    if not isinstance(cname, str) or cname not in {"lz4", "zstd"} or shuffle != "shuffle":
        raise ValueError(f"blosc needs lz4 or zstd, and shuffle; found {shown(cname)} and {shown(shuffle)}")
    return BloscCodec(
        cname,
        _integer(entry, "typesize", 1, 255),
        _integer(entry, "clevel", 0, 9),
        _integer(entry, "blocksize", 0, 2**31 - 1),
    )


def _integer(entry: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = entry.get("configuration", {}).get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{entry['name']} needs {key} from {least} to {most}, found {shown(value)}")
    return value


_PARSERS: Final[dict[str, Callable[[Mapping[str, Any]], Codec]]] = {
    "zstd": _parse_zstd,
    "blosc": _parse_blosc,
}
