"""Checks of a federation before training: which site knows which label, and problems that training would have.

The report of a site uses its own annotations only, so that no site reads the label names of another. Findings about
several sites are in the report of the federation, for its coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedaccord.checks.fairness import fairness_findings
from fedaccord.checks.features import feature_findings
from fedaccord.checks.method import method_findings
from fedaccord.checks.names import (
    common_name_findings,
    missing_word_findings,
    own_name_findings,
    unused_synonym_findings,
    word_name_findings,
)
from fedaccord.checks.reports import Report as Report
from fedaccord.checks.reports import SiteReport
from fedaccord.checks.reports import exit_code as exit_code
from fedaccord.checks.split_labels import joined_name_findings, unshared_label_findings
from fedaccord.config import Experiment
from fedaccord.config_sections import Labels, ServerSection
from fedaccord.data.coverage import (
    connected_groups,
    coverage_matrix,
    indistinguishable_classes,
    labels_of_server,
    labels_without_site,
    one_class_problem,
)
from fedaccord.data.site_data import SiteData
from fedaccord.data.sites import FederationData, Flaw
from fedaccord.errors import CorrespondenceError, UserError, listed
from fedaccord.experiment import read_federation, startup_error
from fedaccord.federation.membership import Membership, membership_notes, rounds_without_owner
from fedaccord.findings import Finding, warning
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import View
from fedaccord.runs.page import spans

SMALLEST_CELL = 5  # rows of a group with a label; fewer are too few for a rate


def check_experiment_data(experiment: Experiment, base: Path) -> Report:
    """Load and check all sites of an experiment; relative paths start from `base`.

    A problem that would stop a run before its first round, such as a wrong cell or an image model for tables, is an
    error.
    """
    return check_data(experiment, base, read_federation(experiment, base))


def check_data(experiment: Experiment, base: Path, data: FederationData) -> Report:
    """Check the data of an experiment that are already loaded, and whether its server starts."""
    report = check_loaded(experiment, data)
    if any(finding.level == "error" for finding in report.findings):
        return report
    refused = startup_error(experiment, base, data)
    return report if refused is None else replace(report, findings=[*report.findings, Finding("error", refused)])


def check_loaded(experiment: Experiment, data: FederationData) -> Report:
    """Check the data of an experiment that are already loaded, without building its model or its server."""
    report = check_federation(data, experiment.settings.softmax == "full")
    memberships, rounds = experiment.memberships, experiment.settings.rounds
    found = [*common_name_findings(experiment, data), *word_name_findings(experiment, data)]
    found += [*unshared_label_findings(experiment, data), *unused_synonym_findings(experiment, data)]
    found += membership_findings(report.coverage, memberships, rounds)
    of_method, advice = method_findings(experiment.method_name, experiment.settings, data)
    found += [*of_method, *map(warning, experiment.stop.without_effect()), *fairness_findings(experiment, data)]
    notes = [*report.notes, *membership_notes(memberships, rounds), *advice]
    sites = [with_names(site, experiment, data) for site in report.sites]
    return replace(report, sites=sites, findings=[*report.findings, *found], notes=notes)


def with_names(report: SiteReport, experiment: Experiment, data: FederationData) -> SiteReport:
    """Return a site's report with findings on its names for labels."""
    found, words = own_name_findings(experiment, data, report.name), data.label_words.get(report.name)
    if words is not None and experiment.labels.classes is None:
        found += joined_name_findings(words.names, data.sites[report.name].view.separator)
    return replace(report, findings=[*report.findings, *found])


def check_own_data(experiment: Experiment, base: Path, name: str) -> SiteReport:
    """Check one site; of sites with their own files, only its file is read."""
    if experiment.sites is None:
        data = read_federation(experiment, base)
        _check_name(name, list(data.sites))
        return _own_report(data, name, [flaw for flaw in data.flaws if flaw.site == name])
    _check_name(name, [site.name for site in experiment.sites])
    own = [site for site in experiment.sites if site.name == name]
    labels = experiment.labels
    if labels.classes is None and not own[0].view.needs_label:
        labels = Labels(classes=["any"])  # counting rows needs no class names
    alone = experiment.model_copy(update={"sites": own, "server": ServerSection(), "labels": labels})
    data = read_federation(alone, base)
    report = with_names(_own_report(data, name, data.flaws), alone, data)
    words = word_name_findings(experiment, data)
    if name in data.label_words and not data.sites[name].view.has_own_names:
        words += missing_word_findings(alone, data.label_words[name].names)
    return replace(report, findings=[*report.findings, *words], columns=data.columns)


def _own_report(data: FederationData, name: str, flaws: Sequence[Flaw]) -> SiteReport:
    report = _read_as(check_site(data.sites[name], data.groups, data.missing_cells.get(name, {})), data)
    texts = [f.error.message_for_site() if isinstance(f.error, CorrespondenceError) else str(f.error) for f in flaws]
    return replace(report, findings=[*(Finding("error", text) for text in texts), *report.findings])


def _check_name(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UserError(f"--site: there is no site '{name}'")  # a site may not know the names of the others


def check_federation(data: FederationData, full_softmax: bool = False) -> Report:
    """Return the reports of every site and of the federation; a full softmax compares all labels at every site."""
    views = data.views
    informs = coverage_matrix(views).tolist()
    coverage = {
        label: {site: views[site].title for site, row in zip(views, informs, strict=True) if row[column]}
        for column, label in enumerate(data.space)
    }
    one_class = one_class_problem(data)
    findings = [
        *(Finding("error", str(flaw.error)) for flaw in data.flaws),
        *([Finding("error", one_class)] if one_class else []),
        *knowledge_findings(views, data.space, labels_of_server(data), full_softmax),
        *sample_findings(data),
        *separation_findings(data),
        *feature_findings(data),
        *(warning(doubt) for name, doubts in data.doubts.items() if name not in data.sites for doubt in doubts),
    ]
    reports = (check_site(site, data.groups, data.missing_cells.get(name, {})) for name, site in data.sites.items())
    sites = [_read_as(report, data) for report in reports]
    read_as = [f"{where}: read as {read}" for where, read in data.read_as.items() if where not in data.sites]
    return Report(sites, coverage, findings, [*data.notes, *read_as], data.columns)


def _read_as(report: SiteReport, data: FederationData) -> SiteReport:
    """Return a site's report with the way its file was read, and warnings on what may be wrong in it."""
    words = data.label_words.get(report.name)
    report = report if words is None else replace(report, no_label=words.missing)
    doubts = [warning(doubt) for doubt in data.doubts.get(report.name, [])]
    return replace(report, read_as=data.read_as.get(report.name, ""), findings=[*doubts, *report.findings])


def check_site(site: SiteData, groups: Sequence[str], missing: Mapping[str, int]) -> SiteReport:
    """Return the report of one site, from its own data only."""
    target = torch.cat([site.train.target, site.test.target])
    named = site.view.names_in(target)
    counts = dict(zip(site.view.answers, named.sum(0).tolist(), strict=True))
    labels = {name: int(n) for name, n in counts.items() if n or name in site.view.declared_names}
    seen = site.view.annotated(target)
    report = SiteReport(
        site.name,
        site.view.title,
        len(site.train),
        len(site.test),
        labels,
        int((~seen).sum()),
        site.view.set_size(target),
        _cells(site, named, groups),
        dict(missing),
        counts_heading=site.view.counts_heading,
        unannotated_words=site.view.unannotated_words,
    )
    return replace(report, findings=_site_findings(site, report))


def _cells(site: SiteData, named: Tensor, groups: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of test rows (training rows if there are none) by certain group and label."""
    part, rows = (site.test, slice(len(site.train), None)) if len(site.test) else (site.train, slice(0, None))
    if part.group is None:
        return {}
    certain = part.group & (part.group.sum(1, keepdim=True) == 1)
    counts = certain.T.long() @ named[rows].long()
    seen_group, seen_label = certain.any(0).tolist(), named.any(0).tolist()
    return {
        group: {label: n for label, n, seen in zip(site.view.answers, row, seen_label, strict=True) if seen}
        for group, row, occurs in zip(groups, counts.tolist(), seen_group, strict=True)
        if occurs
    }


def _site_findings(site: SiteData, report: SiteReport) -> list[Finding]:
    findings = []
    silent = not bool(site.view.annotated(site.train.target).any())
    if silent and site.view.has_annotations:
        findings.append(warning(site.view.silent_warning))
    elif site.view.one_label:  # a tag that is always absent is an annotation too
        empty = [name for name, rows in report.labels.items() if not rows]
        if empty:
            findings.append(warning(f"no row is annotated with {listed(empty)}, which it is declared to know"))
    labels = int(site.view.possible_labels().sum())
    if not silent and report.set_size is not None and labels > 3 and report.set_size > labels - 1.01:
        findings.append(
            warning(f"its candidate sets exclude one of {labels} labels or none, so they teach very little")
        )
    small = [
        f"{label} in {group} ({rows})"
        for group, row in report.cells.items()
        for label, rows in row.items()
        if rows < SMALLEST_CELL
    ]
    if small:
        what = f"a sensitive group is too small to measure; a rate needs at least {SMALLEST_CELL} rows"
        findings.append(warning(f"{what}: {listed(small, quotes=False)}"))
    return findings


def knowledge_findings(
    views: Mapping[str, View], space: LabelSpace, server_labels: Sequence[str] = (), full_softmax: bool = False
) -> list[Finding]:
    """Return findings on the declared views: labels that no site or one site knows, and labels that no site compares.

    The server has labelled samples of `server_labels`, so it knows and compares these.
    """
    teaching = {name: view for name, view in views.items() if view.has_annotations}
    if not teaching:  # some methods can learn from the server's labels alone
        none = "no site has annotations, so there is nothing to learn from"
        return [] if server_labels else [Finding("error", none)]
    findings = []
    unknown = [name for name in labels_without_site(views, space) if name not in server_labels]
    if unknown:
        findings.append(warning(f"no site knows {listed(unknown)}; the model cannot learn what nobody teaches"))
    owners = coverage_matrix(teaching)
    for number, site in enumerate(teaching):
        alone = owners[number] & (owners.sum(0) == 1)
        names = [name for name, only in zip(space, alone.tolist(), strict=True) if only]
        if names and len(teaching) > 1:
            what = f"only site '{site}' knows {listed(names)}"
            findings.append(warning(f"{what}: the model depends on the quality of that site's labels"))
    kinds = {view.one_label for view in teaching.values()}
    if len(kinds) == 2:
        mixed = "some sites have tags, others one label each; a tag's score is not a class probability"
        findings.append(warning(mixed))
    if True in kinds and not server_labels and not full_softmax:
        groups = [group for group in connected_groups(views, space) if group[0] not in unknown]
        if len(groups) > 1:
            parts = "; ".join(listed(group) for group in groups)
            findings.append(
                warning(
                    f"no site connects these groups of labels: {parts}. Scores are only compared within a group, so a "
                    "softmax over a site's known labels cannot learn to tell a label of one group from a label of "
                    "another; one site that knows labels of both would connect them. "
                    'method.softmax = "full" compares all labels, which is right if no '
                    "site has rows of a label that it does not know"
                )
            )
    for site, view in teaching.items():
        findings += map(warning, view.warnings(site))
    return findings


def sample_findings(data: FederationData) -> list[Finding]:
    """Return a warning for labels that sites know but no training row is annotated with."""
    seen = torch.zeros(len(data.space), dtype=torch.bool)
    for site in data.sites.values():
        named = site.view.names_in(site.train.target).any(0)
        seen |= (site.view.matrix[named] > 0).any(0)  # a coarse label counts for all its classes
    known = coverage_matrix(data.views).any(0)
    names = [name for name, gone in zip(data.space, (known & ~seen).tolist(), strict=True) if gone]
    return [warning(f"no site has a training sample of {listed(names)}")] if names else []


def separation_findings(data: FederationData) -> list[Finding]:
    """Return warnings for classes that no site distinguishes, unless the server has labelled samples."""
    if data.labelled is not None:
        return []
    return [
        warning(f"no coarse label and no site tells {listed(names)} apart; the model can only learn them together")
        for names in indistinguishable_classes(data)
    ]


def membership_findings(
    coverage: Mapping[str, Iterable[str]], memberships: Mapping[str, Membership], rounds: int
) -> list[Finding]:
    """Warn of rounds in which a label has no site, and of sites that join too late; `coverage` lists labels' sites."""
    alike: dict[str, list[str]] = {}
    for label, without in rounds_without_owner(coverage, memberships, rounds).items():
        alike.setdefault(spans(without), []).append(label)
    findings = [
        warning(f"no site that knows {listed(labels)} takes part in rounds {when}; nothing is learned about it then")
        for when, labels in alike.items()
    ]
    late = [site for site, membership in memberships.items() if membership.joins > rounds]
    return findings + [warning(f"the run ends after round {rounds}, before {listed(late)} would join")] * bool(late)
