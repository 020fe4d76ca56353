"""python -m tests.load.echo BYTES: a grpc.aio server that answers every call with BYTES bytes.

The floor of any service on this transport. It tells its own CPU time when asked.
"""

import asyncio
import sys
import time
from typing import Any

import grpc
import grpc.aio

from tests.load import child

SERVICE, METHOD = "echo.Echo", "Score"
PATH = f"/{SERVICE}/{METHOD}"


async def serve(reply_bytes: int) -> None:
    reply = bytes(reply_bytes)

    async def handler(raw: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        return reply

    server = grpc.aio.server()
    methods = {METHOD: grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def cpu() -> dict[str, float]:
        return {"cpu_seconds": time.process_time()}

    await asyncio.to_thread(child.answer, {"address": f"127.0.0.1:{port}"}, cpu)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
