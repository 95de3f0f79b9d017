"""Read pickles that hold arrays and plain values, and refuse every other by the name of what it would make.

No class and no function of the pickle's choosing is ever called. What numpy's own pickles call is replaced by
stand-ins that keep what they are given; arrays are made from that afterwards, each size checked.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, Final, Literal

import numpy as np

from mmapload.errors import shown
from mmapload.sources.opcodes import RefusedError, allowance, check_opcodes

__all__ = ["read_pickle"]

_DTYPES: Final = re.compile(r"[biufcUS][0-9]{1,9}|O8?")
_MOST_NAMED: Final = 200
_LATIN: Final = frozenset({"latin1", "latin-1"})


def read_pickle(data: bytes) -> Any:
    """Read a pickle.

    Parameters
    ----------
    data : bytes
        All of it; what follows its end is refused.

    Returns
    -------
    object
        None, bool, int, float, complex, str, bytes, list, tuple, dict, set and numpy arrays, nested as they
        were. An array of objects has such values for elements; a scalar of numpy is an array without axes.

    Raises
    ------
    ValueError
        If it is damaged, or holds anything else; names the class or function.

    Examples
    --------
    >>> read_pickle(pickle.dumps({"a": np.arange(3), "b": "text"}))
    {'a': array([0, 1, 2]), 'b': 'text'}
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    ValueError: it holds builtins.print, and only arrays and plain values are ever read from a pickle
    """
    try:
        check_opcodes(data)
        making = _Making(len(data))
        return making.finished(_loaded(data, making))
    except RefusedError as error:
        raise ValueError(str(error)) from None
    except (MemoryError, RecursionError) as error:
        raise ValueError(f"its pickle takes more memory than there is, or nests too deep ({error})") from None
    except Exception as error:  # noqa: BLE001 - whatever a damaged pickle brings about
        raise ValueError(f"its pickle is damaged ({type(error).__name__}: {error})") from None


def _loaded(data: bytes, making: _Making) -> Any:
    file = io.BytesIO(data)
    value = _Unpickler(file, making).load()
    if file.read(1):
        raise RefusedError("more bytes follow the end of its pickle")
    return value


class _Making:
    """Makes values of what was loaded, each once, and no more than a pickle of its size honestly comes to.

    Parameters
    ----------
    nbytes : int
        Of the pickle.
    """

    def __init__(self, nbytes: int) -> None:
        self._left = allowance(nbytes)
        self._seen: dict[int, Any] = {}

    def spend(self, count: int) -> None:
        """Count bytes or elements that are copied: parts of a pickle can be named again and again."""
        self._left -= count
        if self._left < 0:
            raise RefusedError("its pickle says the same again and again")

    def encoded(self, text: Any, encoding: Any = None) -> bytes:
        """Encode as Python's pickles of bytes of the older protocols do."""
        if not isinstance(text, str) or type(encoding) is not str or encoding not in _LATIN:
            raise RefusedError(f"its pickle would encode text in {shown(encoding)}")
        self.spend(len(text))
        return text.encode("latin-1")

    def finished(self, value: Any) -> Any:
        """Return a value with arrays in the places of what stands for them."""
        if id(value) in self._seen:
            return self._seen[id(value)]
        if isinstance(value, _Array):
            made: Any = value.made(self)
        elif type(value) is dict:
            made = {self.finished(key): self.finished(each) for key, each in value.items()}
        elif type(value) in {list, tuple}:
            made = type(value)(self.finished(each) for each in value)
        elif type(value) in {bool, int, float, complex, str, bytes, bytearray, type(None), set, frozenset}:
            return value
        else:
            raise RefusedError(f"it holds a {type(value).__name__} in place of a value")
        self._seen[id(value)] = made
        return made


class _Unpickler(pickle.Unpickler):
    """Finds stand-ins for what numpy's pickles call, and nothing else."""

    def __init__(self, file: io.BytesIO, making: _Making) -> None:
        super().__init__(file)
        self._encode = _Call(making.encoded)

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        known = _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            what = f"{module}.{name}"[:_MOST_NAMED]
            text = f"it holds {what}, and only arrays and plain values are ever read from a pickle"
            raise RefusedError(text)
        return known

    def persistent_load(self, pid: Any, /) -> Any:
        raise RefusedError(f"it refers to something outside of it, {shown(pid)}")


class _Call:
    """Stands where a pickle names a function: only calling it is possible."""

    __slots__ = ("_function",)
    _function: Any

    def __init__(self, function: Any) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise RefusedError(f"its pickle would change {name!r} of a function")

    def __setstate__(self, state: Any) -> None:
        raise RefusedError("its pickle would change a function")


class _Dtype:
    """Stands for a dtype: what it was named, and the state that followed."""

    __slots__ = ("_name", "_order")

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or not _DTYPES.fullmatch(name):
            raise RefusedError(f"it holds an array of dtype {shown(name)}: save that under a key of its own")
        self._name = name
        self._order: Literal["<", ">", "|", "="] = "="

    def __setstate__(self, state: Any) -> None:
        order, subdtype, names, fields = state[1:5]
        if order not in ("<", ">", "|", "=") or not subdtype is names is fields is None:
            raise RefusedError(f"it holds an array of a dtype that is none of numbers, {shown(state)}")
        self._order = order

    @property
    def dtype(self) -> np.dtype[Any]:
        if self._name[0] == "O":
            return np.dtype(object)
        return np.dtype(f"U{self._name[1:]}" if self._name[0] == "U" else self._name).newbyteorder(
            self._order
        )


class _Array:
    """Stands for an array: shape, dtype and what is in it."""

    __slots__ = ("_data", "_dtype", "_fortran", "_shape")

    def __init__(self, shape: Any = (0,), dtype: Any = None, data: Any = b"", fortran: Any = False) -> None:
        self._shape, self._dtype, self._data, self._fortran = shape, dtype, data, fortran

    def __setstate__(self, state: Any) -> None:
        _, self._shape, self._dtype, self._fortran, self._data = state

    def made(self, making: _Making) -> np.ndarray[Any, Any]:
        given = self._shape
        if not isinstance(given, tuple) or not all(type(length) is int and length >= 0 for length in given):
            raise RefusedError(f"it holds an array of shape {shown(given)}")
        shape: tuple[int, ...] = given
        if not isinstance(self._dtype, _Dtype):
            raise RefusedError("it holds an array without a dtype")
        dtype = self._dtype.dtype
        order: Literal["C", "F"] = "F" if self._fortran else "C"
        if not dtype.hasobject:
            if not isinstance(self._data, bytes | bytearray):
                raise RefusedError("it holds an array without contents")
            array = np.frombuffer(self._data, dtype).reshape(shape, order=order)
            if dtype.isnative:
                return array
            making.spend(array.nbytes)
            return array.astype(dtype.newbyteorder("="))
        if not isinstance(self._data, list):
            raise RefusedError("it holds an array of objects without contents")
        making.spend(len(self._data))
        found = np.empty(len(self._data), object)
        for at, value in enumerate(self._data):
            found[at] = making.finished(value)
        return found.reshape(shape, order=order)


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if kind is not _NDARRAY:
        raise RefusedError(f"it holds an array of a kind of its own, {shown(kind)}")
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, dtype, data, order == "F")


def _scalar(dtype: Any, data: Any = b"") -> _Array:
    return _Array((), dtype, data)


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(real, imaginary)


def _no_bytes() -> bytes:
    return b""


def _no_items() -> dict[Any, Any]:
    return {}


_NDARRAY: Final = object()
_KNOWN: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Call(_Dtype),
    ("numpy.core.multiarray", "_reconstruct"): _Call(_reconstruct),
    ("numpy.core.multiarray", "scalar"): _Call(_scalar),
    ("numpy.core.numeric", "_frombuffer"): _Call(_frombuffer),
    ("builtins", "complex"): _Call(_complex),
    ("__builtin__", "complex"): _Call(_complex),
    ("builtins", "bytes"): _Call(_no_bytes),
    ("__builtin__", "bytes"): _Call(_no_bytes),
    ("collections", "OrderedDict"): _Call(_no_items),
}
