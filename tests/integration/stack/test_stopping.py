"""Ctrl-C in the middle of a night: all that `make up` has started is gone, its files are its user's alone. This file is
the last of its folder, because nothing runs afterwards."""

import signal
from pathlib import Path

import psutil
from tandem_stack.stack import DAG

from tests.integration.stack.conftest import INTERRUPTED, RUN_SECONDS, Up, write_day
from tests.private_files import open_to_others
from tests.realtime_service.conftest import eventually


def is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:  # it has just ended
        return False


def test_ctrl_c_stops_everything_even_a_spark_job_at_work(running: Up) -> None:
    write_day(running, INTERRUPTED, '{"id": "a", "text": "hello"}\n')
    running.api.trigger(DAG, {"day": INTERRUPTED})
    eventually(lambda: any(map(is_java, running.descendants())), RUN_SECONDS, every=0.2)
    started = running.descendants()
    running.process.send_signal(signal.SIGINT)
    code = running.process.wait(60)
    _, left = psutil.wait_procs(started, timeout=0)
    for process in left:
        process.kill()
    said = running.output.read_text()

    assert code == 0, said
    assert left == []
    # Messages are the test's own.
    messages = running.plan.state.messages_dir
    assert [it for it in open_to_others(running.plan.state.state) if not Path(it).is_relative_to(messages)] == []
    assert running.plan.service.grpc_address in said
    assert "user admin, password " in said
