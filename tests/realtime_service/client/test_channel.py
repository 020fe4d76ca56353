"""What may be given as addresses."""

import pytest

from realtime_service.client.channel import target
from shared_model.errors import BadInput


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("replica.example:50051", "replica.example:50051"),
        (["127.0.0.1:1"], "127.0.0.1:1"),
        ("127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        (["127.0.0.1:1", " 127.0.0.2:2 "], "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("localhost:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("[::1]:1,[::1]:2", "ipv6:[::1]:1,[::1]:2"),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("dns:///tandem:50051", "dns:///tandem:50051"),
        ("unix:/run/tandem.sock", "unix:/run/tandem.sock"),
    ],
)
def test_addresses_become_a_target(addresses: str | list[str], expected: str) -> None:
    assert target(addresses) == expected


@pytest.mark.parametrize(
    "addresses",
    [
        "",
        "nowhere",
        "a:1,",
        "a:port",
        "a:0",
        "a:65536",
        "http://a:1",
        [],
        ["ipv4:1.2.3.4:1", "1.2.3.4:2"],
        "[::1]:1,127.0.0.1:1",
    ],
)
def test_what_is_no_address_is_said_in_a_line(addresses: str | list[str]) -> None:
    with pytest.raises(BadInput, match=r"^addresses: .+") as refused:
        target(addresses)
    assert "\n" not in str(refused.value)
