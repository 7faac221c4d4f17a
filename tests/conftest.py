import os
import shutil

import pytest
import torch
from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


def pytest_collection_modifyitems(config, items):
    """Leave out tests that lack real data or a browser here; deselected, so that a skip always means something."""
    here = {
        "realdata": bool(os.environ.get("FEDACCORD_DATA")),
        "chromium": all(map(shutil.which, ("chromium", "chromedriver"))),
    }
    missing = [marker for marker, found in here.items() if not found]
    left_out = [item for item in items if any(map(item.get_closest_marker, missing))]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="module")
def one_thread():
    """Run torch as our workers do; on a busy machine several threads wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
