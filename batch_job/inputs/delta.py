"""Delta tables: the one place that opens them, and their own list of files for engines that read those as Parquet.

Read as a folder of Parquet, a table would show replaced and unfinished rows too.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from batch_job.inputs import ids, parquet
from batch_job.inputs.files import Folder
from batch_job.run_record import InputFile
from shared_model.errors import JobError, NoInput
from shared_model.objects import Location, url

#: Later versions use features (deletion vectors, mapped columns) that the files alone do not show.
_READER_VERSION = 1
#: In errors of deltalake: a red arrow before each cause, and its stack.
_ARROWS, _FRAMES = re.compile("\x1b\\[\\d*m|↳"), "\n   0: "
#: Version 2 lists no features: it is this one.
_VERSION_2 = "columnMapping"


def open_table(location: Location) -> DeltaTable:
    """Raises: JobError as `find_table`, and where there is no table."""
    if (table := find_table(location)) is None:
        raise JobError(f"{location} cannot be read as a Delta table: its _delta_log holds no version")
    return table


def find_table(location: Location) -> DeltaTable | None:
    """The table, None if the location holds no log.

    Raises: JobError naming a table whose log is damaged, and what one asks of its readers where its files are not all
    there is to it.
    """
    try:
        table = DeltaTable(str(location))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise JobError(f"{location} cannot be read as a Delta table: {cause(error)}; restore its _delta_log") from error
    protocol = table.protocol()
    if protocol.min_reader_version > _READER_VERSION:
        features = ", ".join(protocol.reader_features or [_VERSION_2])
        raise JobError(
            f"{location} asks for reader version {protocol.min_reader_version} (features: {features}); "
            f"Tandem reads version {_READER_VERSION}: have the table written without them"
        )
    return table


def cause(error: Exception) -> str:
    """deltalake's error in one line, without its stack. A full disk, for one, comes last of several causes."""
    return url.cause(_ARROWS.sub("", str(error).partition(_FRAMES)[0]))


def problem(table: DeltaTable, names: Sequence[str]) -> str:
    """Why the table cannot be read, from its schema; empty when it can. The first name is that of the ids."""
    kinds = _kinds(table)
    for name in names:
        if name not in kinds:
            return f"has no column {name!r}; it has {', '.join(kinds)}"
    return ids.problem(kinds, names)


def files(table: DeltaTable, location: str, partition: str, ds: str, names: Sequence[str]) -> tuple[InputFile, ...]:
    """The files of a day, or all of them where `partition` is empty. They never change, so their names stand for their
    bytes. `names`: the columns that are read, that of the ids first.

    Raises: NoInput without files; JobError when the table is not partitioned by that column.
    """
    if partition and partition not in table.metadata().partition_columns:
        raise JobError(
            f"{location} is not partitioned by {partition!r}, where the day should be: TANDEM_INPUT_PARTITION"
        )
    actions = pa.table(table.get_add_actions(flatten=True))
    if partition:
        actions = actions.filter(pc.equal(pc.cast(actions[f"partition.{partition}"], pa.string()), ds))
    rows = actions.select(["path", "size_bytes", "num_records"]).to_pylist()
    if not rows:
        day = f"partition {partition}={ds}" if partition else "files"
        raise NoInput(f"no messages: {location} has no {day} in version {table.version()}")
    folder, id_type = Folder(location), ids.type_of(_kinds(table)[names[0]]) or ids.TEXT
    return tuple(sorted((_file(folder, row, names, id_type) for row in rows), key=lambda file: file.name))


def _kinds(table: DeltaTable) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in pa.schema(table.schema().to_arrow())}


def _inside(location: str, name: str) -> str:
    """Raises: JobError for a path that leads out of the table: its log is written by others."""
    if name.startswith("/") or ":" in name.partition("/")[0] or ".." in name.split("/") or "\\" in name:
        raise JobError(f"{location} names a file outside of it: {name!r}; restore its _delta_log")
    return name


def _file(folder: Folder, action: dict[str, Any], names: Collection[str], id_type: str) -> InputFile:
    # On disk a path is escaped once, in the log twice.
    name = _inside(folder.location, unquote(action["path"]))
    lines = action["num_records"]
    # A writer need not say how many rows there are.
    lines = folder.look(name, parquet.rows) if lines is None else int(lines)
    return InputFile(name, action["size_bytes"], "", lines, id_type)
