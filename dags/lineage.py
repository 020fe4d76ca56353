"""Lineage of a night for OpenLineage: the messages, the scores table, its columns, and the release as a facet."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset
from openlineage.client.facet_v2 import RunFacet, column_lineage_dataset

#: Schemes that OpenLineage calls otherwise.
_SCHEMES = {"s3a": "s3"}


@attrs.define
class ReleaseRunFacet(RunFacet):  # type: ignore[misc]  # OpenLineage has no types here
    """`release`: the id of the release that scored. `day`: of the messages."""

    release: str
    day: str


def of_run(found: Mapping[str, Any]) -> OperatorLineage:
    """`found`: the lineage among the facts of `report`."""
    messages = dataset(found["input"])
    scores = dataset(found["scores"], {"columnLineage": _columns(messages, found["columns"])})
    return OperatorLineage(
        inputs=[messages],
        outputs=[scores] if found["scores"] else [],
        run_facets={"tandem_release": ReleaseRunFacet(found["release"], found["day"])},
    )


def dataset(place: str, facets: Mapping[str, Any] | None = None) -> Dataset:
    """A folder or a URL, by OpenLineage's rules for names."""
    parts = urlsplit(place)
    if not parts.scheme:
        return Dataset("file", place, facets=dict(facets or {}))
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    return Dataset(f"{scheme}://{parts.netloc}", parts.path.strip("/"), facets=dict(facets or {}))


def _columns(messages: Dataset, columns: Mapping[str, Sequence[str]]) -> Any:
    def fields(names: Sequence[str]) -> Any:
        found = [column_lineage_dataset.InputField(messages.namespace, messages.name, name) for name in names]
        return column_lineage_dataset.Fields(found)

    return column_lineage_dataset.ColumnLineageDatasetFacet({name: fields(names) for name, names in columns.items()})
