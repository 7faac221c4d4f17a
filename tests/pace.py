"""Which cases of a parametrized test run in `make test`, and which in `make test-slow`."""

import pytest


def mostly_slow(values, *fast):
    """Mark all values as slow but the given ones, which stand for the others in `make test`."""
    unknown = set(fast) - set(values)
    assert not unknown, f"no such case: {sorted(unknown)}"
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
