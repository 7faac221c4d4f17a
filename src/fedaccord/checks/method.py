"""Findings on a method: settings without effect, samples of the server that it does not use, too many hostile sites."""

from __future__ import annotations

from pkgutil import resolve_name

from fedaccord.adversary.settings import DefenceSettings, attack_of, share_of
from fedaccord.aggregation.robust import Rule
from fedaccord.checks.single_labels import single_label_findings
from fedaccord.data.sites import FederationData
from fedaccord.extensions import is_ours
from fedaccord.findings import Finding, warning
from fedaccord.methods.registry import METHODS, make_recipe, method_entry
from fedaccord.training.settings import TrainingSettings


def method_findings(name: str, settings: TrainingSettings, data: FederationData) -> tuple[list[Finding], list[str]]:
    """Return a method's findings, and the notes of all methods that have advice for these data."""
    said, entry = settings.lr_warning(name), method_entry(name)
    found = [*([warning(said)] if said else []), *map(warning, settings.without_effect())]
    found += [*unused_samples(name, settings, data), *hostile_findings(settings, len(data.sites))]
    found += single_label_findings(settings, data)
    if entry.check:
        found += resolve_name(entry.check)(settings, data)
    advice = [text for other in METHODS.values() if other.advice for text in resolve_name(other.advice)(data)]
    notes = [finding.text for finding in found if finding.level == "note"]
    return [finding for finding in found if finding.level != "note"], [*advice, *notes]


def unused_samples(name: str, settings: TrainingSettings, data: FederationData) -> list[Finding]:
    """Warn if the server holds samples that the method does not use."""
    unused = []
    if data.labelled is not None and not make_recipe(name, settings).server_trains:
        unused.append("labelled samples")
    reads = settings.reads_server_inputs
    if reads is None:
        reads = not is_ours(type(settings).__module__)  # other code may read them without saying so
    if data.unlabelled is not None and not reads:
        unused.append("inputs without labels")
    return [warning(f"the method '{name}' does not use the server's {samples}") for samples in unused]


def hostile_findings(settings: TrainingSettings, sites: int) -> list[Finding]:
    """Warn if a study has more hostile sites than its robust rule or its defence can withstand."""
    attack = attack_of(settings)
    if attack is None:
        return []
    asked = attack.sites
    hostile = len(asked) if isinstance(asked, list) else asked
    if isinstance(hostile, float):
        hostile = max(1, share_of(hostile, sites))
    rule, findings = Rule(getattr(settings, "aggregation", "mean"), getattr(settings, "hostile", 0.2)), []
    most = (sites - 1) // 2 if rule.name == "median" else rule.hostile_among(sites)
    who = f"method.attack makes {hostile} of {sites} sites hostile, and"
    if rule.name != "mean" and hostile > most:
        way = "use fewer" if rule.name == "median" else "raise method.hostile, or use fewer"
        findings.append(warning(f'{who} aggregation = "{rule.name}" withstands {most}; {way}'))
    defence = getattr(settings, "defence", None)
    if isinstance(defence, DefenceSettings) and defence.verdict_rule != "two-means":
        most = share_of(defence.most, sites)
        if hostile > most:
            text = f"{who} the defence excludes {most} at most; raise method.defence.most, or use fewer"
            findings.append(warning(text))
    return findings
