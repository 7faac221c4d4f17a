"""The findings of a check that a run prints before it trains."""

from __future__ import annotations

from collections.abc import Callable

from fedaccord.checks.federation import check_loaded
from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.errors import DataError

MOST = 10  # warnings that are printed; `fedaccord check` prints all


def warn_before_run(experiment: Experiment, data: FederationData, warn: Callable[[str], object]) -> None:
    """Call `warn` with each warning on the loaded data; raise DataError for an error."""
    report = check_loaded(experiment, data)
    findings = sorted(report.all_findings(), key=lambda finding: finding not in report.findings)  # sites come last
    for finding in findings:
        if finding.level == "error":
            raise DataError(finding.text)
    texts = [finding.text for finding in findings if finding.level == "warning"]
    for text in texts[:MOST]:
        warn(text)
    if len(texts) > MOST:
        warn(f"{len(texts) - MOST} more warnings are printed by `fedaccord check`")
