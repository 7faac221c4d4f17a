import os
import shutil
import subprocess
import tempfile

import pytest
import torch
from hypothesis import settings

from leftovers import pytest_configure, pytest_unconfigure  # noqa: F401
from mortal import Nursery

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


def pytest_collection_modifyitems(config, items):
    """Leave out tests that lack data, a browser or a right here; deselected, so that a skip would mean something."""
    here = {
        "realdata": bool(os.environ.get("FEDACCORD_DATA")),
        "chromium": all(map(shutil.which, ("chromium", "chromedriver"))),
        "mount": any(item.get_closest_marker("mount") for item in items) and can_mount(),
    }
    missing = [marker for marker, found in here.items() if not found]
    left_out = [item for item in items if any(map(item.get_closest_marker, missing))]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def can_mount():
    """Try it: even root may not, in a container."""
    if not shutil.which("mount"):
        return False
    with tempfile.TemporaryDirectory() as place:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True).returncode:
            return False
        subprocess.run(["umount", place], check=True)
    return True


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Run torch as our workers do; two sessions of two threads on two cores wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Keep what is cached out of the user's folder, also in processes that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDACCORD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    """Run commands in processes of their own that may be killed; torch is imported once for all."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()
