"""Only one service can use a public address, and only its workers share the port."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from realtime_service.process import address_lock
from shared_model.errors import SettingError


def test_an_address_is_held_once_and_the_holder_is_named(tmp_path: Path) -> None:
    with address_lock.holding("127.0.0.1:50051", tmp_path):
        with pytest.raises(SettingError) as refused, address_lock.holding("127.0.0.1:50051", tmp_path):
            pass
        with address_lock.holding("127.0.0.2:50051", tmp_path), address_lock.holding("127.0.0.1:50052", tmp_path):
            pass
    assert str(refused.value) == (
        f"TANDEM_GRPC_ADDRESS=127.0.0.1:50051: cannot listen there: the service of process {os.getpid()} does"
    )
    with address_lock.holding("127.0.0.1:50051", tmp_path):
        pass


def test_containers_that_share_a_state_folder_each_have_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docker-compose.yml has them: they differ in their host's name."""
    with address_lock.holding("0.0.0.0:50051", tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
        with address_lock.holding("0.0.0.0:50051", tmp_path), pytest.raises(SettingError):
            address_lock.holding("0.0.0.0:50051", tmp_path).__enter__()


def test_port_0_needs_no_lock(tmp_path: Path) -> None:
    with address_lock.holding("127.0.0.1:0", tmp_path), address_lock.holding("127.0.0.1:0", tmp_path):
        pass


@pytest.mark.heavy
def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    hold = "import sys, pathlib; from realtime_service.process import address_lock\n"
    hold += "with address_lock.holding('127.0.0.1:1', pathlib.Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline()
        with pytest.raises(SettingError, match=str(holder.pid)), address_lock.holding("127.0.0.1:1", tmp_path):
            pass
        holder.kill()
    with address_lock.holding("127.0.0.1:1", tmp_path):
        pass


def test_a_reserved_port_is_shared_by_workers_only() -> None:
    with address_lock.reserved("127.0.0.1:0") as address:
        port = int(address.rpartition(":")[2])
        assert port
        with socket.socket() as worker, socket.socket() as stranger:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind(("127.0.0.1", port))
            with pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", port))


@pytest.mark.parametrize("shares", [0, 1])
def test_a_port_with_a_listener_is_not_reserved(shares: int) -> None:
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
        somebody.bind(("127.0.0.1", 0))
        somebody.listen()
        address = f"127.0.0.1:{somebody.getsockname()[1]}"
        with pytest.raises(SettingError) as refused, address_lock.reserved(address):
            pass
    assert str(refused.value).startswith(f"TANDEM_GRPC_ADDRESS={address}: cannot listen there")


def test_an_unknown_host_is_one_line() -> None:
    with pytest.raises(SettingError) as refused, address_lock.reserved("no.such.host.invalid:1"):
        pass
    assert str(refused.value).startswith("TANDEM_GRPC_ADDRESS=no.such.host.invalid:1: cannot listen there")
