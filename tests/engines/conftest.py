"""Engines that many tests share, since starting a worker takes a second or two."""

from __future__ import annotations

import pytest
from toy_host import in_threes, toy_engine

from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import HostSpec


@pytest.fixture(scope="session")
def pool():
    """Two workers; whatever a test does to them, the next must find them working."""
    with toy_engine(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def here():
    with toy_engine(0) as here:
        yield here


@pytest.fixture(scope="session")
def threes():
    """Two workers that are given up to three sites at a time, whose host cannot train more than one."""
    with toy_engine(2, in_threes, apart=["train"]) as threes:
        yield threes


@pytest.fixture(scope="module")
def crowd():
    with EmbeddedEngine(HostSpec("toy_host:build"), [f"site-{i:03d}" for i in range(100)], 2) as crowd:
        yield crowd


@pytest.fixture(params=["here", "pool"])
def either(request):
    chosen = request.getfixturevalue(request.param)
    chosen.restore({})
    return chosen
