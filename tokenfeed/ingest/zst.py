"""Reading .zst files whole: zstandard's own reader takes a file that was cut off for one that ends there."""

from __future__ import annotations

import io
from typing import IO, Any, Final, cast

import zstandard

_CHUNK: Final = 128 * 1024


def open_zst(raw: IO[bytes]) -> IO[bytes]:
    """The unpacked bytes of all frames, one after the other.

    Reading raises:
        EOFError: the last frame is not complete.
        OSError: the bytes are not zstandard's.
    """
    return cast(IO[bytes], io.BufferedReader(_Frames(raw), _CHUNK))


class _Frames(io.RawIOBase):
    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._plain:
            self._packed = self._packed or self._raw.read(_CHUNK)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the file ends inside a zstandard frame")
                return 0
            self._plain = memoryview(self._unpack())
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _unpack(self) -> bytes:
        frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
        try:
            plain = frame.decompress(self._packed)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        self._frame = None if frame.eof else frame
        self._packed = frame.unused_data
        return plain
