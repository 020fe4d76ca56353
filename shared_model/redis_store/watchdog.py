"""Stops the embedded redis-server after the last process that uses it has ended or was killed.

    python watchdog.py PIDFD USERS

PIDFD is an inherited descriptor of the server's process; USERS a file on which each of its users holds a shared lock.
The kernel releases the lock of a process that ends or is killed. Started by `server`, never by hand; it imports no
other module of Tandem, because it lives as long as the server does.
"""

import fcntl
import select
import signal
import sys
import threading

#: A server that has not stopped by then is killed.
_STOP_MS = 10_000


def main(server: int, users: str) -> None:
    threading.Thread(target=_end_unused, args=(server, users), daemon=True).start()
    # Readable once the server has ended; this process then ends too and releases its lock.
    select.select([server], [], [])


def _end_unused(server: int, users: str) -> None:
    with open(users) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Locked until the end: a new user must not take a server that is stopping.
        signal.pidfd_send_signal(server, signal.SIGTERM)
        ended = select.poll()
        ended.register(server, select.POLLIN)
        if not ended.poll(_STOP_MS):
            signal.pidfd_send_signal(server, signal.SIGKILL)
            ended.poll()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
