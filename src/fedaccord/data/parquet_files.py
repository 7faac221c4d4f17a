"""Parquet files as columns of text cells."""

from __future__ import annotations

from pathlib import Path

from fedaccord.data.frames import NO_LISTS, frame_cells
from fedaccord.data.text_files import RawTable
from fedaccord.data.unpacking import refuse_cells, refuse_unpacked
from fedaccord.errors import DataError


def read_parquet_table(path: Path) -> RawTable:
    """Read a Parquet file; each row's line is its number from 1."""
    import pandas as pd  # imported here because pandas takes a second to load

    try:
        frame = pd.read_parquet(path, read_dictionary=_texts_of_bounded(path))
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"'{path}' holds more than fits into memory; split it") from None
    except ValueError as error:  # the base of pyarrow's errors
        raise DataError(f"'{path}' cannot be read as a table: {' '.join(str(error).split())}") from None
    names, columns = frame_cells(frame, f"'{path}'")
    return RawTable(names, columns, list(range(1, len(frame) + 1)))


def _texts_of_bounded(path: Path) -> list[str]:
    """Return the columns of text, which are read as references to their distinct values.

    Raise DataError for a file that unpacks to too much, or has columns of lists. The sizes are those that the file
    declares before anything is unpacked.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        about, schema = file.metadata, file.schema_arrow
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        refuse_unpacked(path, sum(group.total_byte_size for group in groups))
        refuse_cells(path, about.num_rows, about.num_columns)
    for column in schema:
        if pa.types.is_nested(column.type):
            raise DataError(f"'{path}': column '{column.name}' {NO_LISTS}")
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary, pa.types.is_binary)
    return [column.name for column in schema if any(is_kind(column.type) for is_kind in kinds)]
