"""One service per host and public address: a file lock in the state folder, held until its process ends."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from realtime_service.settings import address_taken


@contextlib.contextmanager
def holding(address: str, state: Path) -> Iterator[None]:
    """Lock an address for this process while the context lasts. Port 0 needs no lock.

    The kernel releases the lock with the process, however it ends. Raises: SettingError naming the process that holds
    it.
    """
    if address.endswith(":0"):
        yield
        return
    folder = state / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    # Containers may share the folder, and each has all ports.
    name = f"{socket.gethostname()}-{address}"
    with open(folder / name.replace(":", "-").replace("/", "-"), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise address_taken(address, f"the service of process {file.read().strip()} does") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def reserved(address: str, variable: str = "TANDEM_GRPC_ADDRESS") -> Iterator[str]:
    """Reserve a port that only this service's workers can share, while the context lasts: "HOST:PORT", port 0 resolved.
    `variable`: the setting.

    The socket never listens, so it gets no call. Raises: SettingError if another process listens there.
    """
    host, _, port = address.rpartition(":")
    try:
        family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise address_taken(address, str(error.strerror), variable) from error
    with socket.socket(family) as alone, socket.socket(family) as shared:
        try:
            # With SO_REUSEPORT alone, another service's socket with that option would go unnoticed.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(place)
            resolved = (place[0], alone.getsockname()[1], *place[2:])
            alone.close()
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(resolved)
        except OSError as error:
            raise address_taken(address, f"{error.strerror}; is the port taken?", variable) from error
        yield f"{host}:{resolved[1]}"
