"""One worker for each GPU, or for each group that computes a batch together; and where lanes compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.process import gpus
from realtime_service.process.cores import worker_cores
from realtime_service.process.gpus import VISIBLE, environment, hide, worker_gpus
from realtime_service.settings import ServiceSettings, lanes, placement, spreads, variants
from shared_model import settings
from shared_model.errors import SettingError
from shared_model.types import WHOLE, Device, Precision, Spread


def read(**environment: str) -> ServiceSettings:
    return settings.load(ServiceSettings, {f"TANDEM_{name.upper()}": value for name, value in environment.items()})


@pytest.mark.parametrize(
    ("devices", "here", "ranks", "expected"),
    [
        ("auto", 0, "1", []),
        ("auto", 2, "1", [(0,), (1,)]),
        ("cpu", 2, "1", []),
        ("cuda:1", 2, "1", [(1,)]),
        ("cuda:3,1", 4, "1", [(3,), (1,)]),
        ("auto", 4, "2", [(0, 1), (2, 3)]),
        ("cuda:0,2,3", 4, "2", [(0, 2)]),
    ],
)
def test_each_gpu_has_a_worker(devices: str, here: int, ranks: str, expected: list[tuple[int, ...]]) -> None:
    service = read(devices=devices, throughput_tensor_parallel=ranks)
    assert worker_gpus(service, here) == expected
    if expected:
        dealt = worker_cores(service, range(16), on_gpus=len(expected))
        assert [len(cores) for cores in dealt] == [16 // len(expected)] * len(expected)


def test_a_worker_has_the_cores_of_its_gpus_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared_model.devices.gpu_node", [1, 1, 0, 0].__getitem__)
    for ranks, expected in {"1": [(2,), (3,), (0,), (1,)], "2": [(2, 3), (0, 1)]}.items():
        assert worker_gpus(read(devices="auto", throughput_tensor_parallel=ranks), 4) == expected


@pytest.mark.parametrize("devices", ["gpu", "cuda", "cuda:", "cuda:x", "cuda:0,0", "cuda:-1", "cpu,cuda:0"])
def test_other_devices_are_refused_in_one_line(devices: str) -> None:
    line = f"^TANDEM_DEVICES='{devices}': expected auto, cpu, or GPUs by their numbers, as cuda:0,1$"
    with pytest.raises(SettingError, match=line):
        read(devices=devices)


def test_a_gpu_that_is_not_here_is_named() -> None:
    with pytest.raises(SettingError, match=r"^TANDEM_DEVICES='cuda:0,7': there is no GPU 7; this host has 2, counted"):
        worker_gpus(read(devices="cuda:0,7"), 2)


def test_a_worker_sees_its_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert environment([(0,), (1,)], 3) == {VISIBLE: "1", "TANDEM_DEVICES": "cuda:1"}
    # By the names of those that the service itself may see.
    monkeypatch.setenv(VISIBLE, "4,5,GPU-6c1a")
    assert environment([(0, 2)], 0) == {VISIBLE: "4,GPU-6c1a", "TANDEM_DEVICES": "cuda:0,2"}
    assert environment([], 0) == {}


@pytest.mark.parametrize(("devices", "visible"), [("cpu", "-1"), ("auto", "2"), ("cuda:0", "2")])
def test_on_cpu_no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch, devices: str, visible: str) -> None:
    monkeypatch.setenv(VISIBLE, "2")
    hide(read(devices=devices))
    assert gpus.os.environ[VISIBLE] == visible


def spread_of(half: Device, here: int, **environment: str) -> dict[Precision, Spread]:
    service = read(threads="4", **environment)
    table = lanes(service, half)
    return spreads(service, table, variants(table, half), here)


def test_lanes_spread_their_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime_service.settings.cores", lambda: 4)
    assert spread_of(Device.CPU, 0) == {Precision.INT8: WHOLE, Precision.BF16: WHOLE}
    assert spread_of(Device.CPU, 0, latency_pipeline_parallel="4")[Precision.INT8] == Spread(stages=4)
    both = spread_of(Device.CUDA, 2, latency_pipeline_parallel="2", throughput_tensor_parallel="2")
    assert both == {Precision.INT8: Spread(stages=2), Precision.FP16: Spread(ranks=2)}
    on_gpus = spread_of(Device.CUDA, 2, latency_pipeline_parallel="2", latency_precision="half")
    assert on_gpus[Precision.FP16] == Spread(stages=2)
    # A replica without the lane has nothing to spread.
    assert spread_of(Device.CPU, 0, lanes="latency", throughput_tensor_parallel="2") == {Precision.INT8: WHOLE}


@pytest.mark.parametrize(
    ("half", "here", "environment", "line"),
    [
        (Device.CPU, 0, {"throughput_tensor_parallel": "2"}, "PARALLEL='2': expected .* GPUs here, which is 0"),
        (Device.CUDA, 2, {"throughput_tensor_parallel": "3"}, "PARALLEL='3': expected .* GPUs here, which is 2"),
        (Device.CPU, 0, {"latency_pipeline_parallel": "5"}, "PIPELINE_PARALLEL='5': .* cores here, which is 4"),
        (
            Device.CUDA,
            2,
            {"latency_pipeline_parallel": "2", "throughput_tensor_parallel": "2", "latency_precision": "half"},
            "PIPELINE_PARALLEL='2': the latency lane computes in fp16, .* set one of them",
        ),
    ],
)
def test_what_devices_do_not_allow_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, half: Device, here: int, environment: dict[str, str], line: str
) -> None:
    monkeypatch.setattr("realtime_service.settings.cores", lambda: 4)
    with pytest.raises(SettingError, match=line):
        spread_of(half, here, **environment)


@given(st.sampled_from(Device), st.sampled_from(["auto", "cpu", "cuda:1", "cuda:0,1"]))
def test_placements_name_gpus_where_they_are_known(device: Device, devices: str) -> None:
    named = devices if device is Device.CUDA and "cuda" in devices else device
    assert placement(device, WHOLE, devices) == named
    assert placement(device, Spread(ranks=2), devices) == f"{named} in 2 ranks"
    assert placement(device, Spread(stages=3), devices) == f"{named} in 3 stages"
