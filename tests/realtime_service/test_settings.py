"""All numbers of the service levels are settings, from the environment or a file, and checked at the start."""

import dataclasses
from pathlib import Path

import pytest

from realtime_service.settings import SERVED, LaneSettings, ServiceSettings, lanes, variants
from shared_model import settings
from shared_model.commands import await_replicas
from shared_model.errors import SettingError
from shared_model.types import Device, Precision, ServingPath
from tests.realtime_service.process.test_lifecycle import serve_and_fail

LATENCY, DYNAMIC, THROUGHPUT, DEFERRED = (*SERVED, ServingPath.DEFERRED)


def test_the_defaults_are_the_table_of_service_levels() -> None:
    table = lanes(ServiceSettings(), Device.CPU)
    assert list(table) == [LATENCY, DYNAMIC, THROUGHPUT, DEFERRED]
    assert [it.precision for it in table.values()] == [Precision.INT8, Precision.INT8, Precision.BF16, Precision.BF16]
    assert [it.max_rows for it in table.values()] == [1, 64, 64, 64]
    assert [it.max_concurrent for it in table.values()] == [64, 256, 256, 256]
    assert [it.max_delay for it in table.values()][:3] == [0.0, 0.050, 0.050]
    assert [it.load_target for it in table.values()] == [0.60, 0.0, 0.95, 0.0]
    assert [it.target_seconds for it in table.values()] == [0.050, 0.0, 0.500, 0.0]
    assert [it.target_rate for it in table.values()] == [50.0, 0.0, 1000.0, 0.0]
    assert [it.assumed_timeout for it in table.values()][1:3] == [0.250, 0.500]
    ours = ServiceSettings()
    assert [(ours.lane(it).workers, ours.lane(it).threads) for it in SERVED] == [(8, 4), (0, 0), (4, 8)]
    assert (ours.latency_below_ms, ours.throughput_above_ms, ours.interactive_unit_ms) == (100, 1000, 20.0)


def test_on_a_gpu_dynamic_and_throughput_run_half_precision() -> None:
    table = lanes(ServiceSettings(), Device.CUDA)
    assert [it.precision for it in table.values()] == [Precision.INT8] + [Precision.FP16] * 3
    assert variants(table, Device.CUDA) == {Precision.INT8: Device.CPU, Precision.FP16: Device.CUDA}


@pytest.mark.parametrize("field", [it.name for it in dataclasses.fields(LaneSettings)])
@pytest.mark.parametrize("lane", SERVED)
def test_every_number_of_a_lane_can_be_set(lane: ServingPath, field: str) -> None:
    value = {"precision": "half", "load_target": "0.5"}.get(field, "3")
    loaded = settings.load(ServiceSettings, {f"TANDEM_{lane}_{field}".upper(): value})
    assert str(getattr(loaded.lane(lane), field)) in (value, f"{value}.0")
    assert [loaded.lane(other) for other in SERVED if other != lane] == [
        ServiceSettings().lane(other) for other in SERVED if other != lane
    ]


def test_only_the_variants_of_the_lanes_are_loaded() -> None:
    latency = lanes(ServiceSettings(lanes="latency"), Device.CPU)
    assert list(latency) == [LATENCY]
    assert variants(latency, Device.CPU) == {Precision.INT8: Device.CPU}
    bulk = lanes(ServiceSettings(lanes="throughput"), Device.CPU)
    assert list(bulk) == [THROUGHPUT, DEFERRED]
    assert variants(bulk, Device.CPU) == {Precision.BF16: Device.CPU}


def test_lanes_are_ordered_by_urgency_however_they_are_named() -> None:
    assert ServiceSettings(lanes="throughput,latency").served == (LATENCY, THROUGHPUT)


WRONG = [
    ("TANDEM_LANES", "latency,fast", "some of latency,dynamic,throughput"),
    ("TANDEM_LANES", "latency,latency", "some of latency,dynamic,throughput"),
    ("TANDEM_LANES", "deferred", "some of latency,dynamic,throughput"),
    ("TANDEM_WORKERS", "-1", "0 or more"),
    ("TANDEM_LATENCY_PRECISION", "int4", "int8, half or auto"),
    ("TANDEM_LATENCY_MAX_ROWS", "0", "a number above 0"),
    ("TANDEM_DYNAMIC_LOAD_TARGET", "1.1", "a share from 0 to 1"),
    ("TANDEM_THROUGHPUT_MAX_DELAY_MS", "-1", "0 or more"),
    ("TANDEM_THROUGHPUT_RATE", "nan", "0 or more"),
    ("TANDEM_PROBE_SECONDS", "inf", "a number above 0"),
    ("TANDEM_QUOTA", "-1", "0 or more"),
    ("TANDEM_REFLECTION", "maybe", "auto, true or false"),
    ("TANDEM_LATENCY_BELOW_MS", "1001", "at most TANDEM_THROUGHPUT_ABOVE_MS, which is 1000"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_wrong_value_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingError) as error:
        settings.load(ServiceSettings, {name: value})
    assert str(error.value) == f"{name}={value!r}: expected {expected}"


@pytest.mark.parametrize(
    ("address", "said", "reflects"),
    [
        ("127.0.0.1:0", "auto", True),
        ("[::1]:50051", "auto", True),
        ("localhost:50051", "auto", True),
        ("0.0.0.0:50051", "auto", False),
        ("replica-1:50051", "auto", False),
        ("127.0.0.1:0", "False", False),
        ("0.0.0.0:50051", "true", True),
    ],
)
def test_reflection_is_served_where_only_this_host_can_call(address: str, said: str, reflects: bool) -> None:
    environment = {"TANDEM_GRPC_ADDRESS": address, "TANDEM_REFLECTION": said}
    assert settings.load(ServiceSettings, environment).reflects is reflects


def test_every_setting_has_a_description() -> None:
    for cls in (ServiceSettings, LaneSettings):
        assert all(len(it.metadata["help"]) > 10 for it in dataclasses.fields(cls) if "group" not in it.metadata)


@pytest.mark.heavy
def test_a_file_sets_only_variables_that_are_not_set(tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text('workers = 1000\nlanes = ["latency", "dynamic"]\n[latency]\nconcurrency = 8\n')
    assert "TANDEM_WORKERS='1000'" in serve_and_fail(tmp_path, tmp_path, TANDEM_CONFIG=str(file))
    line = serve_and_fail(tmp_path, tmp_path, TANDEM_CONFIG=str(file), TANDEM_WORKERS="2000")
    assert "TANDEM_WORKERS='2000'" in line
    file.write_text("[latency]\nconcurrency = 0\n")
    line = serve_and_fail(tmp_path, tmp_path, TANDEM_CONFIG=str(file))
    assert line == "realtime_service serve: TANDEM_LATENCY_CONCURRENCY='0': expected a number above 0"


def test_who_waits_for_a_release_hears_of_one_that_hangs() -> None:
    assert ServiceSettings().probe_seconds < await_replicas.DEFAULT_SECONDS
