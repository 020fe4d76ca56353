"""The listeners of a serving process that answer calls: gRPC's, and HTTP's where its address is set."""

import asyncio
import socket
from typing import TYPE_CHECKING

from realtime_service.process.calls import SERVICES, Calls
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.metrics import Metrics
from realtime_service.transport.health import Readiness
from realtime_service.transport.listener import advertised, bind, make_listener, offer_reflection
from shared_model.tls import CertificateFiles

if TYPE_CHECKING:
    from realtime_service.http.listener import HttpListener


class Listeners:
    """Bound when made: the heartbeat carries `address`, which is this process's alone. `http_url`: "" without HTTP."""

    def __init__(
        self,
        shared: bool,
        settings: ServiceSettings,
        metrics: Metrics,
        certificates: CertificateFiles | None,
        calls: CallsUnderWay,
    ) -> None:
        """`shared`: other workers listen on the same ports. `calls`: counts those of gRPC. Raises: SettingError."""
        self._settings = settings
        self._certificates = certificates
        self._grpc = make_listener(shared, settings, metrics, calls)
        public = bind(self._grpc, settings.grpc_address, certificates)
        own = bind(self._grpc, f"{public.rpartition(':')[0]}:0", certificates) if shared else public
        self.address = advertised(own, settings.advertised_host)
        self.http_url = ""
        self._http: HttpListener | None = None
        if settings.http.address:
            self._http_socket = self._bind_http(shared)

    async def start(self, calls: Calls, readiness: Readiness) -> None:
        self._grpc.add_generic_rpc_handlers(calls.handlers())
        if self._settings.reflects:
            offer_reflection(self._grpc, SERVICES)
        self._grpc.add_generic_rpc_handlers((readiness.handlers(),))
        await self._grpc.start()
        if self.http_url:
            from realtime_service.http.listener import HttpListener

            self._http = HttpListener(self._http_socket, calls.http(), self._settings, self._certificates)
            await self._http.start()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, and let those under way end, at most for `grace` seconds."""
        both = [self._grpc.stop(grace), *([self._http.stop(grace)] if self._http else [])]
        await asyncio.gather(*both)

    def _bind_http(self, shared: bool) -> socket.socket:
        # Imported where it is needed: most services have no HTTP.
        from realtime_service.http import listener

        bound = listener.bind(self._settings.http.address, shared)
        scheme, host = "https" if self._certificates else "http", self._settings.http.address.rpartition(":")[0]
        self.http_url = f"{scheme}://{host}:{bound.getsockname()[1]}"
        return bound
