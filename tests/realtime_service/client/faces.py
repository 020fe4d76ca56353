"""Both clients behind one face, so that each promise is asked of both."""

import asyncio
import contextlib
from typing import Any

from realtime_service.client import Answer, AsyncClient, Client, LastNight


class Threads:
    """The client for threads."""

    def __init__(self, addresses: Any, **options: Any) -> None:
        self.client = Client(addresses, **options)

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def score(self, texts: Any, **options: Any) -> Answer:
        return self.client.score(texts, **options)

    def submit(self, *arguments: Any, **options: Any) -> Any:
        return self.client.submit(*arguments, **options)

    def result(self, request_id: str, **options: Any) -> Any:
        return self.client.result(request_id, **options)

    def lookup(self, ids: Any, **options: Any) -> LastNight:
        return self.client.lookup(ids, **options)

    def listed(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """Everything that `stream` or `watch` gives."""
        return list(getattr(self.client, method)(*arguments, **options))

    def first(self, method: str, *arguments: Any) -> Any:
        """The first of them; the others are not waited for."""
        with contextlib.closing(getattr(self.client, method)(*arguments)) as items:
            return next(items)


class Loop:
    """The client for event loops, in a loop of its own."""

    def __init__(self, addresses: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.client = AsyncClient(addresses, **options)

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.client.close())
        self._runner.close()

    def score(self, texts: Any, **options: Any) -> Answer:
        return self._runner.run(self.client.score(texts, **options))

    def submit(self, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(self.client.submit(*arguments, **options))

    def result(self, request_id: str, **options: Any) -> Any:
        return self._runner.run(self.client.result(request_id, **options))

    def lookup(self, ids: Any, **options: Any) -> LastNight:
        return self._runner.run(self.client.lookup(ids, **options))

    def listed(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [item async for item in getattr(self.client, method)(*arguments, **options)]

        return self._runner.run(collect())

    def first(self, method: str, *arguments: Any) -> Any:
        async def one() -> Any:
            async with contextlib.aclosing(getattr(self.client, method)(*arguments)) as items:
                return await anext(items)

        return self._runner.run(one())


FACES = (Threads, Loop)
Face = type[Threads] | type[Loop]
