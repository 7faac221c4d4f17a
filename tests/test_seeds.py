"""One function gives every random stream its seed."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from fedaccord.seeds import derive

PURPOSES = st.sampled_from(["init", "batches", "participation", "partition"])


def test_a_seed_is_the_same_in_every_process_and_version():
    # A resumed run, a worker and another machine must draw the same numbers; Python's own hash() would differ.
    assert derive(0, "batches", "site-a", 1) == 0x66F51462E7BFE1E3
    code = "from fedaccord.seeds import derive; print(derive(0, 'batches', 'site-a', 1))"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(fresh.stdout) == derive(0, "batches", "site-a", 1)


@given(st.integers(), PURPOSES, st.text(), st.integers())
def test_a_seed_fits_the_generators_of_torch_and_numpy(seed, purpose, site, round_):
    assert 0 <= derive(seed, purpose, site, round_) < 2**63


def test_seed_purpose_site_and_round_each_give_another_stream():
    streams = {
        derive(seed, purpose, site, round_)
        for seed in range(5)
        for purpose in ("batches", "participation")
        for site in ("a", "b", "c")
        for round_ in range(20)
    }
    assert len(streams) == 5 * 2 * 3 * 20


def test_keys_do_not_run_into_one_another():
    assert derive(0, "batches", "site-1", 1) != derive(0, "batches", "site-", 11)
    assert derive(1, "1") != derive(11, "")
    assert derive(0, "batches") != derive(0, "batches", "")
