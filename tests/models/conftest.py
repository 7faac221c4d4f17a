import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    # As in our workers; on a busy machine several threads wait for one another and take four times as long.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
