"""Tests that a stack finds free ports, and names a port that is taken."""

import socket

import pytest

from distrust.common.errors import Unavailable
from distrust.lab.stack.stack import LOOPBACK, choose_ports


def test_base_zero_gives_three_different_free_ports() -> None:
    ports = choose_ports(0, ["server", "shuffler", "aggregator"])
    assert len(set(ports.values())) == 3
    assert all(port > 1023 for port in ports.values())


def test_a_busy_port_is_named_with_its_service_and_the_way_out() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"port {port} for the shuffler is in use.*--port-base 0"):
            choose_ports(port, ["shuffler"])
