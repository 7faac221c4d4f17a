import pytest

from mortal import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    """Where commands live that may be killed; it pays once for importing torch."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()
