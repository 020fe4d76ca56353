"""The figures of a canary and of the release that it is tried beside, as heartbeats carry them."""

from protos.scoring.v1.storage_pb2 import Figures, LaneFigures, ReleaseFigures
from realtime_service.models.registry import Model, Serving


def compared(serving: Serving) -> Figures | None:
    """None where no model has a canary: heartbeats stay small."""
    roles = [it for it in (serving.default, *serving.others.values()) if it.canary]
    releases = [release for it in roles for release in (it.active, it.canary) if release in serving.models]
    return Figures(releases=[_figures(serving.models[release]) for release in releases]) if releases else None


def _figures(model: Model) -> ReleaseFigures:
    counted = model.statistics
    return ReleaseFigures(
        release=model.release,
        failed=counted.unserved,
        lanes=[
            LaneFigures(path=path, answered=it.count, late=it.late, slow=it.slow, seconds=it.seconds)
            for path, it in counted.lanes.items()
        ],
    )
