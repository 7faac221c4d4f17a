"""Findings of `fedaccord check` about `accord`: the server's labelled samples, and what the sites' experts cost."""

from __future__ import annotations

from fedaccord.data.coverage import distinguished, labels_of_server, lacking_at_server, server_lacks
from fedaccord.data.sites import FederationData
from fedaccord.data.validation_rows import SHARE
from fedaccord.errors import listed
from fedaccord.findings import Finding, note, warning
from fedaccord.methods.accord.server import CHEAP_SHARE, WEIGHING_SHARE, ways_alone
from fedaccord.methods.accord.settings import AccordSettings


def check(settings: AccordSettings, data: FederationData) -> list[Finding]:
    """Return findings about the server's labelled samples and the experts of the sites."""
    return [*labelled_findings(data), *expert_findings(settings)]


def labelled_findings(data: FederationData) -> list[Finding]:
    """Return warnings about labelled samples of the server that teach nothing, and about classes that they lack."""
    if data.labelled is None:
        return []
    present = labels_of_server(data)
    tagged = [name for name, site in data.sites.items() if not site.view.one_label]
    if tagged:
        return [
            warning(
                f"the server's labelled samples are not used: each has one class, and {listed(tagged)} "
                f"ha{'s' if len(tagged) == 1 else 've'} tags"
            )
        ]
    if len(present) < 2:
        only = f"are all '{present[0]}'" if present else "have no class"
        return [warning(f"the server's labelled samples are not used: they {only}, so they tell no classes apart")]
    unexplained = any(not site.view.is_known for site in data.sites.values())
    lacking = set(data.space.names) - set(present) if unexplained else lacking_at_server(data)
    return [*map(warning, server_lacks(data, lacking - distinguished(data)))]


def expert_findings(settings: AccordSettings) -> list[Finding]:
    """Return a note on the training steps and models sent for the experts, beside those of the shared model."""
    if settings.personal == "off":
        return []
    if settings.personal == "cheap":
        more, sent = CHEAP_SHARE, "no more"
    else:
        apart = WEIGHING_SHARE * (1.0 if settings.epochs is None else 1 - SHARE)  # fewer rows, shorter epochs
        more, sent = 1 + apart * (1 + len(ways_alone(settings))), f"{1 + WEIGHING_SHARE:.1f} times as many"
    cost = f'{1 + more:.1f} times the training steps of personal = "off", and {sent} models sent'
    return [note(f'personal = "{settings.personal}" takes about {cost}')]
