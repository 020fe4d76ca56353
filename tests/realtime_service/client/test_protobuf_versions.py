"""The generated modules, and so the client, work with protobuf 4 to 7 and the grpcio of their time."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.realtime_service.client.scripted import scripted
from tests.realtime_service.client.test_calls import ANSWER

REPOSITORY = Path(__file__).parents[3]
GENERATED = sorted((REPOSITORY / "protos").rglob("*_pb2*.py"))

#: What generated modules may use: all of it is in protobuf 4 and in grpcio 1.49, and still there in the newest ones.
GENERATED_MAY_USE = {
    "google.protobuf": {"descriptor", "descriptor_pool", "symbol_database"},
    "google.protobuf.internal": {"builder"},
    "_descriptor": {"_USE_C_DESCRIPTORS"},
    "_descriptor_pool": {"Default"},
    "_symbol_database": {"Default"},
    "_builder": {"BuildMessageAndEnumDescriptors", "BuildTopDescriptorsAndMessages"},
    "grpc": {
        "StatusCode",
        "experimental",
        "method_handlers_generic_handler",
        "stream_stream_rpc_method_handler",
        "unary_stream_rpc_method_handler",
        "unary_unary_rpc_method_handler",
    },
}

CALLS = """
import sys, google.protobuf, grpc
from google.protobuf.internal import api_implementation
from realtime_service.client import Client
with Client(sys.argv[1]) as client:
    print(google.protobuf.__version__, grpc.__version__, api_implementation.Type(), client.score("hello").label)
"""


def used_by(module: Path) -> Iterator[tuple[str, str]]:
    """(what of, what) a generated module takes from protobuf and grpc."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            assert [alias.name for alias in node.names] == ["grpc"], f"{module}:{node.lineno}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in GENERATED_MAY_USE:
            yield ast.unparse(node.value), node.attr


@pytest.mark.parametrize("module", GENERATED, ids=lambda module: module.name)
def test_a_generated_module_uses_only_what_protobuf_4_has(module: Path) -> None:
    used = {(of, name) for of, name in used_by(module) if not of.startswith("protos")}
    assert used
    assert {f"{of}: {name}" for of, name in used if name not in GENERATED_MAY_USE.get(of, ())} == set()


@pytest.mark.proof
@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize(
    ("protobuf", "grpcio"),
    [("4.21.12", "1.49.1"), ("4.25.8", "1.62.3"), ("5.29.5", "1.71.2"), ("6.33.1", "1.76.0"), ("7.35.1", "1.85.1")],
)
def test_the_client_is_answered_with_every_protobuf(
    protobuf: str, grpcio: str, implementation: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Installs real versions from the package index."""
    site = tmp_path_factory.getbasetemp() / f"protobuf-{protobuf}"
    if not site.exists():
        wanted = [f"protobuf=={protobuf}", f"grpcio=={grpcio}"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", str(site)]
        subprocess.run([*pip, *wanted], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{site}:{REPOSITORY}",
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation,
    }
    with scripted(ANSWER) as script:
        # Without -S the packages of the environment that runs the tests would be there, too.
        called = [sys.executable, "-S", "-c", CALLS, script.address]
        said = subprocess.run(called, env=environment, capture_output=True, text=True, check=False)
    assert (said.stdout.split(), said.returncode) == ([protobuf, grpcio, implementation, "greeting"], 0), said.stderr
