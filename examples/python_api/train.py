"""FedAccord from Python: three sites that label handwritten digits differently, and a custom network.

Run it as a script, or cell by cell in an editor that supports `# %%`. It writes to the current folder.
"""

# %% Data in memory. In practice each site has its own.
import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import fedaccord

digits = load_digits()
x, names = digits.data.astype(np.float32) / 16, digits.target.astype(str)
order = np.random.default_rng(0).permutation(len(x))
lab, clinic, archive, server = np.split(order, [120, 420, 720])

# %% How each site observes the true label.
space = fedaccord.LabelSpace(list("0123456789"))
shapes = {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "open": ["2", "3", "5"]}
shape_of = {digit: shape for shape, digits_ in shapes.items() for digit in digits_}
pairs = {digit: f"{digit}|{(int(digit) + 1) % 10}" for digit in space.names}  # each digit is confused with the next

sites = [
    fedaccord.Site("lab", x[lab], names[lab], fedaccord.Exact(space)),
    fedaccord.Site("clinic", x[clinic], [pairs[n] for n in names[clinic]], fedaccord.Candidates(space)),
    fedaccord.Site("archive", x[archive], [shape_of[n] for n in names[archive]], fedaccord.Coarse(space, shapes)),
]
federation = fedaccord.Federation(sites, test=(x[server], names[server]))


# %% Any module with an encoder and a head.
class Digits(nn.Module):
    """Small network; methods find the encoder and the head by these names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, pixels):  # noqa: ANN001, ANN201
        """Return logits."""
        return self.head(self.encoder(pixels))


# %% Train together, and each site alone.
together = federation.train(method="accord", model=Digits(), rounds=20, steps=10, lr=0.1)
alone = federation.train(method="local", model=Digits(), rounds=20, steps=10, lr=0.1)

# %% The metrics of all rounds are one data frame.
for name, result in {"together": together, "alone": alone}.items():
    last = result.metrics.query("round == 20 and scope == 'site' and metric != 'samples'")
    print(name, last.pivot(index="site", columns="metric", values="value").round(3), "", sep="\n")

# %% The report, and the model as a plain PyTorch module.
print("report:", together.report("report.html"))
model = together.model
