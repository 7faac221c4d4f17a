import pytest
import torch
from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


@pytest.fixture(scope="module")
def one_thread():
    """Run torch as our workers do; on a busy machine several threads wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
