"""When this replica would answer a request, lane by lane, as the routing decision asks for it."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from realtime_service.execution.devices import Devices
from realtime_service.models.registry import Model
from shared_model.types import ServingPath


class FinishTimes(Mapping[ServingPath, float]):
    """Seconds until this replica would answer a request, by lane: predicted for lanes that are asked for, once each.
    `lanes`: that are open here; `tokens`, `at_least`: as in `Device.finish_of`; `ahead`: short texts that go before the
    request, and are not queued yet."""

    def __init__(
        self,
        device: Devices,
        model: Model,
        tokens: Sequence[int],
        lanes: Collection[ServingPath],
        real_time: bool,
        caller: str,
        at_least: bool = False,
        ahead: int = 0,
    ) -> None:
        self._device = device
        self._model = model
        self._tokens = tokens
        self._at_least = at_least
        self._real_time = real_time
        self._caller = caller
        self._lanes = lanes
        self._ahead = ahead
        self._found: dict[ServingPath, float | None] = {}

    def __getitem__(self, path: ServingPath) -> float:
        if path not in self._lanes:
            raise KeyError(path)
        if path not in self._found:
            self._found[path] = self._predict(path)
        finish = self._found[path]
        if finish is None:
            raise KeyError(path)
        return finish

    def predicted(self, path: ServingPath) -> float | None:
        """The prediction for a lane, if one was made."""
        return self._found.get(path)

    def alone(self, path: ServingPath) -> float:
        """The part of a prediction that the texts themselves take."""
        return self._device.alone(self._model, path, self._tokens)

    def _predict(self, path: ServingPath) -> float | None:
        model, device = self._model, self._device
        finish = device.finish_of(model, path, self._tokens, self._real_time, self._caller, self._at_least)
        if finish is None or not self._ahead:
            return finish
        return finish + self._ahead * device.per_text(model, path)

    def __iter__(self) -> Iterator[ServingPath]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)
