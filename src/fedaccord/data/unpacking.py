"""Compressed files, unpacked up to a limit: a small file must not fill a machine's memory."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from fedaccord.errors import DataError

LIMIT = 512 << 20  # bytes that any compressed file may unpack to
GROWTH = 20  # a large file may unpack to this many times its own size
MOST_CELLS = 250_000_000  # of a table in a compressed format
_DEFLATE = 1032  # largest ratio of zlib's compression
_PIECE = 1 << 16


def unpacking_limit(path: Path) -> int:
    """Return the number of bytes that a compressed file may unpack to."""
    return max(LIMIT, GROWTH * path.stat().st_size)


def refuse_unpacked(path: Path, size: int) -> None:
    """Raise DataError if a file unpacks to more bytes than it may."""
    if size > unpacking_limit(path):
        raise DataError(_too_large(path))


def refuse_cells(path: Path, rows: int, columns: int) -> None:
    """Raise DataError if a compressed table has more cells than it may."""
    if rows * columns > MOST_CELLS:
        most = f"more than the limit of {MOST_CELLS // 10**6} million cells"
        raise DataError(f"'{path}' has {rows} rows of {columns} columns, {most} in a compressed file; split it")


def read_gzip(path: Path) -> bytes:
    """Return the content of a .gz file; raise DataError for one that is damaged, cut off or unpacks to too much."""
    try:
        if path.stat().st_size * _DEFLATE > unpacking_limit(path):
            _count_unpacked(path)
        with gzip.open(path) as file:
            return file.read()
    except gzip.BadGzipFile as error:
        if "Not a gzipped file" in str(error):
            raise DataError(f"'{path}' is not compressed by gzip; take '.gz' out of its name") from None
        raise DataError(f"'{path}' is damaged ({error}); copy it again") from None
    except EOFError:
        raise DataError(f"'{path}' is cut off {_last_line(path)}; copy it again") from None
    except zlib.error as error:
        raise DataError(f"'{path}' is damaged {_last_line(path)} ({error}); copy it again") from None


def refuse_large_archive(path: Path) -> None:
    """Raise DataError for a zip archive, such as .npz or .xlsx, that unpacks to too much.

    Reading a member ends at the size that the archive declares for it, so the declared sizes bound what is unpacked.
    """
    with zipfile.ZipFile(path) as archive:
        refuse_unpacked(path, sum(member.file_size for member in archive.infolist()))


def _count_unpacked(path: Path) -> None:
    """Unpack a .gz file piece by piece, keep nothing, and raise DataError at the limit."""
    limit, size = unpacking_limit(path), 0
    with gzip.open(path) as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > limit:
                raise DataError(_too_large(path))


def _last_line(path: Path) -> str:
    """Return the line at which a damaged .gz file can no longer be read."""
    lines, unpacked = 1, zlib.decompressobj(wbits=31)
    with path.open("rb") as file, suppress(zlib.error):
        while piece := file.read(_PIECE):
            while piece:
                lines += unpacked.decompress(piece, _PIECE).count(b"\n")
                piece = unpacked.unconsumed_tail
            if unpacked.eof:
                break
    return f"in line {lines}"


def _too_large(path: Path) -> str:
    limit = unpacking_limit(path) / (1 << 20)
    return (
        f"'{path}' ({path.stat().st_size} bytes) unpacks to more than {limit:.0f} MiB, the limit for a compressed file "
        "of its size; if it is yours and really this large, unpack it first or split it"
    )
