"""Docker's engine of Debian's docker.io, unpacked, not installed: for as long as a run needs it.

Images are built with the network of this machine. Containers run in namespaces of their own, of network, mounts and
processes: they take no port of this machine, its packet filter stays as it is, and nothing outlives the engine.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.debian import unpacked
from tests.realtime_service.conftest import eventually

_PACKAGES = ("docker.io", "containerd", "runc", "tini", "iptables")
_LIBRARIES = ("libip4tc2", "libip6tc2", "libxtables12", "libnftnl11", "libmnl0", "libdevmapper1.02.1")


class Engine:
    """An engine whose images lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix://{self._folder / 'engine.sock'}"

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        with self._running([], "--bridge=none", "--iptables=false", "--ip6tables=false"):
            yield

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """For containers."""
        alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with self._running([*alone, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]):
            yield

    def within(self) -> list[str]:
        """The words before a command that calls what containers publish."""
        assert self._process
        return ["nsenter", "--net", "--target", str(self._process.pid)]

    def docker(self, *arguments: str | Path) -> list[str | Path]:
        return [unpacked("docker.io") / "usr" / "bin" / "docker", "--host", self.address, *arguments]

    @contextlib.contextmanager
    def _running(self, before: list[str], *options: str) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [*before, "dockerd", "--host", self.address, "--pidfile", str(self._folder / "engine.pid")]
        command += ["--data-root", str(self._folder / "data"), "--exec-root", str(self._folder / "exec"), *options]
        with (self._folder / "engine.log").open("wb") as log:
            process = subprocess.Popen(command, env=_environment(self._folder), stdout=log, stderr=log)
        self._process = process
        try:
            eventually(self._answers, every=0.2)
            yield
        finally:
            # unshare passes no signal on: its child is the engine.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[0]) if before else process.pid, signal.SIGTERM)
            process.wait(120)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"the engine ended: {self._folder / 'engine.log'}"
        return subprocess.run(self.docker("version"), check=False, capture_output=True).returncode == 0


def _environment(folder: Path) -> dict[str, str]:
    roots = [unpacked(it) / "usr" for it in _PACKAGES]
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("iptables", "ip6tables"):
        # A link of Debian's alternatives, which unpacking does not make.
        link = programs / name
        link.unlink(missing_ok=True)
        link.symlink_to(unpacked("iptables") / "usr" / "sbin" / "xtables-nft-multi")
    libraries = [it for name in _LIBRARIES for it in (unpacked(name) / "usr" / "lib", unpacked(name) / "lib")]
    triplet = [str(it / "x86_64-linux-gnu") for it in libraries]
    plugins = unpacked("iptables") / "usr" / "lib" / "x86_64-linux-gnu" / "xtables"
    path = [str(programs), *(str(it / part) for it in roots for part in ("bin", "sbin")), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "LD_LIBRARY_PATH": os.pathsep.join(triplet),
        "XTABLES_LIBDIR": str(plugins),
    }
