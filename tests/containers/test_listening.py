"""Addresses of servers: IPv4, IPv6, both, and those that cannot be bound."""

import socket

import httpx
import pytest

from collage.errors import OptionError
from containers import listening
from containers.listening import open_socket
from tests.servers.model_server import ModelServer


def answers(listener, host):
    listener.listen()
    with socket.create_connection((host, listener.getsockname()[1]), timeout=5):
        return True


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("::", ("127.0.0.1", "::1")),
        ("", ("127.0.0.1", "::1")),
        ("0.0.0.0", ("127.0.0.1",)),
        ("127.0.0.1", ("127.0.0.1",)),
        ("::1", ("::1",)),
        ("[::1]", ("::1",)),
    ],
)
def test_an_address_is_reached_by_its_families(host, reached):
    for address in reached:
        with open_socket(host, 0) as listener:
            assert answers(listener, address)


def test_every_address_is_ipv4_without_ipv6(monkeypatch):
    bind = listening._bind

    def without_ipv6(family, address):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return bind(family, address)

    monkeypatch.setattr(listening, "_bind", without_ipv6)
    with open_socket("::", 0) as listener:
        assert answers(listener, "127.0.0.1")


@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
def test_a_port_in_use_is_told(host):
    with open_socket(host, 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OptionError, match=rf"port {port}: Address already in use.*free port"):
            open_socket(host, port)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no such name", "[::1"])
def test_an_address_of_another_machine_is_told(host):
    with pytest.raises(OptionError, match=r"cannot listen on .*:: is every one"):
        open_socket(host, 0)


def test_a_port_beyond_the_range_is_told():
    with pytest.raises(OptionError, match="ports are between 0 and 65535"):
        open_socket("::", 65536)


def test_a_server_answers_both_families(bundle):
    server = ModelServer(bundle, "--host", "::")
    for host in ("127.0.0.1", "[::1]"):
        url = f"http://{host}:{server.port}/v2/health/ready"
        assert httpx.get(url, trust_env=False).status_code == 200
    server.stop()
    assert server.process.returncode == 0
