"""What a deployed server knows: its own samples go with it."""

from pathlib import Path

import torch

from fedaccord.config import check_experiment
from fedaccord.deployment.known import read_known, write_known
from fedaccord.experiment import load_federation
from people import table


def test_a_servers_labelled_samples_go_with_it(tmp_path):
    data = {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}
    for server in ({}, {"labelled": {"per_class": 2}}):
        made = load_federation(check_experiment({"data": data, "server": server}), Path())
        write_known(tmp_path, made)
        known = read_known(tmp_path).labelled
        if not server:
            assert known is None
        else:
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(known, made.labelled, strict=True))


def test_the_groups_of_a_servers_own_test_samples_go_with_it(tmp_path):
    """Without them a deployed run would have no global figures of fairness, which the embedded run has."""
    told = table(tmp_path) | {"server": {"unseen": 2}}
    made = load_federation(check_experiment(told), tmp_path)
    write_known(tmp_path, made)
    known = read_known(tmp_path)
    assert len(known.test[0]) == len(known.test_groups[0]) > 200
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(known.test_groups, made.test_groups, strict=True))
