"""Ids of any scalar type become text, each value a text of its own. Plan finds the type, Spark converts the values.

The text is that of Spark's `cast(id as string)` in UTC. It differs for bytes, and for times in nanoseconds, which Spark
reads as numbers.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from batch_job.run_record import Input
from shared_model.errors import BadInput

#: The type of ids that are text already, and that of UUIDs.
TEXT, UUID = "", "uuid"
#: The way out for any other type.
CAST = "cast it to string, or name another column"

#: Digits of the widest decimal that Spark has.
_MOST_DIGITS = 38
#: Arrow's names of types whose values are the same.
_SAME_AS = {
    **dict.fromkeys(("string", "large_string", "string_view"), TEXT),
    **dict.fromkeys(("large_binary", "binary_view"), "binary"),
    "extension<arrow.uuid>": UUID,
}
#: The name of a type → what Spark reads it as.
_READ_AS = {
    TEXT: "string",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "uint64": "decimal(20, 0)",
    "bool": "boolean",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
    "timestamp[ms]": "timestamp",
    "timestamp[us]": "timestamp",
    "timestamp[ns]": "bigint",
    "time32[ms]": "int",
    "time64[us]": "bigint",
    "time64[ns]": "bigint",
    "binary": "binary",
    "fixed_size_binary": "binary",
    UUID: "binary",
}

_FINITE = "case when not isnan(@) and abs(@) <> double('infinity') then cast(@ as string) end"
_HEX = "lower(hex(@))"
#: Seconds are rounded down, so that the rest is positive before 1970 too.
_NANOSECONDS = (
    "concat(cast(timestamp_seconds(@ div 1000000000 - case when @ % 1000000000 < 0 then 1 else 0 end) as string), '.', "
    "lpad(pmod(@, 1000000000), 9, '0'))"
)

#: SQL of an id's text where it is no plain cast; @ is the column.
_TEXT_OF = {
    # A NaN stands for a missing number, and an infinity for many numbers.
    "float": _FINITE,
    "double": _FINITE,
    "timestamp[ns]": _NANOSECONDS,
    # Of the first day of 1970, what follows the date.
    "time32[ms]": "substring(cast(timestamp_millis(@) as string), 12)",
    "time64[us]": "substring(cast(timestamp_micros(@) as string), 12)",
    "time64[ns]": f"substring({_NANOSECONDS}, 12)",
    # A text whose writer did not say so. Bytes that are no UTF-8 reach Python as they are, to be quarantined.
    "binary": "@",
    "fixed_size_binary": _HEX,
    UUID: f"regexp_replace({_HEX}, '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})', '$1-$2-$3-$4-')",
}

#: Types of Spark's whose values their texts tell. Bytes may be texts or written in hex.
_TOLD = {
    *("tinyint", "smallint", "int", "bigint", "decimal", "float", "double"),
    *("string", "boolean", "date", "timestamp", "timestamp_ntz"),
}


def type_of(kind: pa.DataType) -> str | None:
    """The name by which a run knows a type of ids, TEXT where they are text; None for a type that is not read."""
    if pa.types.is_dictionary(kind):
        return type_of(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})" if kind.precision <= _MOST_DIGITS else None
    name = _SAME_AS.get(str(kind), str(kind))
    return name if _family(name) in _READ_AS else None


def problem(kinds: Mapping[str, pa.DataType], names: Sequence[str]) -> str:
    """Why columns of these types hold no messages, empty when they do. `names`: of the ids, then of the texts."""
    for name in names:
        found = type_of(kinds[name])
        if found is None and name == names[0]:
            return not_read(name, kinds[name])
        if found != TEXT and name != names[0]:
            return f"has column {name!r} as {kinds[name]}, not as string: {CAST}"
    return ""


def not_read(name: str, kind: object) -> str:
    return f"has column {name!r} as {kind}, which is not read as an id: {CAST}"


def read_as(id_type: str) -> str:
    """The Spark type of a column of ids."""
    return _READ_AS.get(_family(id_type), id_type)


def text_sql(id_type: str, column: str) -> str:
    """SQL of their texts; `column`: as SQL has it."""
    return _TEXT_OF.get(_family(id_type), "@" if id_type == TEXT else "cast(@ as string)").replace("@", column)


def value_sql(kind: str, column: str) -> str:
    """SQL of ids of a Spark type, from the column of their texts; Spark fails at a text that no value of it has.
    Raises: BadInput for a type that texts do not tell."""
    if kind.partition("(")[0] not in _TOLD:
        raise BadInput("id", f"is of type {kind}: ids of {', '.join(sorted(_TOLD))} can be had from their texts")
    # Texts of times have no zone, and are of UTC whatever the session's.
    local, value = (kind, "@") if kind != "timestamp" else ("timestamp_ntz", "concat(@, 'Z')")
    same = f"cast(try_cast(@ as {local}) as string) = @"
    refused = f"raise_error(concat('id ', @, ' is no {kind}: read one source and day, or ids as text'))"
    return f"if({same}, try_cast({value} as {kind}), {refused})".replace("@", column)


def note(source: Input) -> str:
    """One line where ids are not text already; empty otherwise."""
    types = sorted({file.id_type for file in source.files} - {TEXT})
    return f"ids of type {' and '.join(types)} are read as text" if types else ""


def _family(id_type: str) -> str:
    """Its name without a length and a zone: Parquet keeps times of a zone in UTC."""
    name, _, rest = id_type.partition("[")
    unit = rest.removesuffix("]").partition(",")[0]
    return name if name == "fixed_size_binary" or not unit else f"{name}[{unit}]"
