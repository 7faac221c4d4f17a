"""How a group is treated, as rounds measure it: which figures there are, and what they rest on."""

import numpy as np
import pytest

from people import GROUPS, played, table

pytestmark = pytest.mark.usefixtures("one_thread")


def test_tags_are_given_no_rates_and_break_no_round(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    np.savez(
        tmp_path / "people.npz", x=x, Y=(x[:, :3] > 0).astype(np.int8), label_names=["low", "medium", "high"],
        region=rng.choice(GROUPS, 120),
    )  # fmt: skip
    told = table(tmp_path, sites=2, name="fedavg", rounds=1)
    told["data"]["view"] = {"kind": "tags"}
    _, records = played(told | {"run": {"workers": 0, "evaluate_every": 1}})
    figures = records[-1].evaluation
    assert "map" in figures.global_
    for measured in (figures.global_, *figures.sites.values()):
        assert not {"eod", "members", "members_candidate"} & set(measured)
