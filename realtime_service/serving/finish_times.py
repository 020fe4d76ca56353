"""When this replica would answer a request, lane by lane, as the routing decision asks for it."""

from collections.abc import Iterator, Mapping, Sequence

from realtime_service.execution.devices import Devices
from realtime_service.models.registry import Model
from realtime_service.serving.request import RequestContext
from shared_model.types import ServingPath


class FinishTimes(Mapping[ServingPath, float]):
    """Seconds until this replica would answer a request, by lane: predicted for lanes that are asked for, once each.
    `tokens`, `at_least`: as in `Device.finish_of`."""

    def __init__(
        self,
        device: Devices,
        model: Model,
        tokens: Sequence[int],
        context: RequestContext,
        at_least: bool = False,
    ) -> None:
        self._device = device
        self._model = model
        self._tokens = tokens
        self._at_least = at_least
        self._real_time = context.real_time
        self._caller = context.flow
        self._lanes = context.snapshot.lanes
        self._found: dict[ServingPath, float | None] = {}

    def __getitem__(self, path: ServingPath) -> float:
        if path not in self._lanes:
            raise KeyError(path)
        if path not in self._found:
            self._found[path] = self._device.finish_of(
                self._model, path, self._tokens, self._real_time, self._caller, self._at_least
            )
        finish = self._found[path]
        if finish is None:
            raise KeyError(path)
        return finish

    def predicted(self, path: ServingPath) -> float | None:
        """The prediction for a lane, if one was made."""
        return self._found.get(path)

    def __iter__(self) -> Iterator[ServingPath]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)
