"""Every method on a real deployment with three nodes, against the embedded engine, by the digest of the final model.

    python tests/engines/flower/all_recipes.py [METHOD ...]

`make parity` runs it. It takes about a minute for each method; two methods stand in the test suite.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from fleet import Fleet  # noqa: E402
from replay import embedded, switch  # noqa: E402

from fedaccord.errors import FedAccordError  # noqa: E402
from fedaccord.methods.registry import METHODS  # noqa: E402

BASE = """
seed = 5

[data]
dataset = "digits"
samples = 240
partition = { kind = "quantity", sizes = [80, 75, 70] }
names = ["a", "b", "c"]

[model]
hidden = [16]

[run]
workers = 0
"""
# The first that a method takes is used: not every method is for every kind of annotation.
VIEWS = (
    'a = { known = ["0", "1", "2", "3", "4", "5"] }\nb = { kind = "candidates", generate = "uniform" }\n',
    "".join(f'{site} = {{ kind = "candidates", generate = "uniform" }}\n' for site in "abc"),
    "",
)


# For methods whose server trains on labelled samples of its own, and whose sites take passes over their data.
# Their threshold is so low that the sites are confident and have something to say.
LABELLED = (
    "[data.views]\n"
    + "".join(f'{site} = {{ kind = "coarse", correspondence = "shape" }}\n' for site in "abc")
    + "\n[server]\nlabelled = { per_class = 3 }\n"
)


def write_tags(path: Path) -> Path:
    """Write the digits with tags: which of the named shapes and parities each one has."""
    digits = load_digits()
    tags = np.stack([np.isin(digits.target, (0, 6, 8, 9)), digits.target % 2 == 0, digits.target > 4], 1)
    np.savez(path, X=digits.data, Y=tags.astype(np.int8), label_names=["round", "even", "large"])
    return path


def texts(method: str, tagged: Path) -> list[str]:
    settings = f'[method]\nname = "{method}"\nrounds = 2\n'
    taught = f"{BASE.replace('240', '320')}\n{LABELLED}\n{settings}lr = 0.05\n"
    plain = [f"{BASE}\n[data.views]\n{views}\n{settings}steps = 3\n" for views in VIEWS]
    tags = BASE.replace('"digits"', f'"{tagged}"\nview = {{ kind = "tags" }}')
    tags = tags.replace("[model]", '[model]\nname = "sphere-mlp"') if method == "spherefed" else tags
    return [*plain, f"{taught}threshold = 0.1\n", taught, f"{tags}\n{settings}steps = 3\n"]


def main() -> None:
    methods = sys.argv[1:] or [name for name in METHODS if name != "pooled"]  # which moves data
    failed, fleet = [], None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tagged = write_tags(folder / "tags.npz")
        for method in methods:
            here = text = None
            for text in texts(method, tagged):
                try:
                    here = embedded(Path(tempfile.mkdtemp(dir=folder)), text)
                    break
                except FedAccordError as error:
                    print(f"{method}: {error}", flush=True)
            if here is None or text is None:
                failed.append(method)
                continue
            began = time.monotonic()
            if fleet is None:
                fleet = Fleet(folder / "d", text)
                fleet.start("a", "b", "c")
            else:
                switch(fleet, text, Path(tempfile.mkdtemp(dir=folder)))
            try:
                fleet.begin()
                there = fleet.finish(300, len(list(fleet.runs().glob("*/summary.json"))) + 1)
                same = there["model_sha256"] == here["model_sha256"] and there["dropped"] == here["dropped"]
            except AssertionError as error:
                print(error, flush=True)
                same = False
            told = f"{here['model_sha256'][:12]}  {'the same' if same else 'DIFFERS'}"
            print(f"{method:24} {told}  {time.monotonic() - began:.0f} s", flush=True)
            if not same:
                failed.append(method)
        if fleet is not None:
            fleet.close()
    if failed:
        sys.exit(f"not the same: {', '.join(failed)}")


if __name__ == "__main__":
    main()
