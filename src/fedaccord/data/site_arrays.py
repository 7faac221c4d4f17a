"""Sites that bring .npz files; each is scaled by the moments of its own training rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedaccord.data.annotate import Annotated, read_annotations
from fedaccord.data.dataset import Dataset
from fedaccord.data.declarations import SiteSection
from fedaccord.data.requests import SiteFiles
from fedaccord.data.scaling import Moments, fit_moments
from fedaccord.data.server_data import add_server_files, read_arrays, read_server_file
from fedaccord.data.sites import FederationData, draw_test_rows, make_site, refuse_empty
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import ViewContext, view_class
from fedaccord.seeds import derive


def read_array_sites(request: SiteFiles) -> FederationData:
    """Read sites from .npz files.

    A site's test rows are those that its file marks; otherwise they are drawn. Sites are read in the order of their
    names, so that their order in the experiment file has no effect.
    """
    sections = {section.name: section for section in sorted(request.sections, key=lambda section: section.name)}
    files = {name: read_arrays(request.path(section), f"site '{name}'") for name, section in sections.items()}
    shapes = {file.shape for file in files.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{name}: {file.shape}" for name, file in files.items())
        raise DataError(f"the sites' samples differ in shape ({listed})")
    classes = request.classes
    if classes is None:
        named = [file.labels for name, file in files.items() if view_class(sections[name].view.kind).names_are_labels]
        classes = list(dict.fromkeys(label for labels in named for label in labels))
        if not classes:
            raise ConfigError("labels.classes is needed: no site's file names the classes of the federation")
    result = FederationData(LabelSpace(classes), {}, shapes.pop())
    for name, file in files.items():
        _add(result, sections[name], file, request)
    result.sites = {section.name: result.sites[section.name] for section in request.sections}
    add_server_files(result, request.test_file, request.labelled, partial(read_server_file, result=result))
    return result


def _add(result: FederationData, section: SiteSection, file: Dataset, request: SiteFiles) -> None:
    name = section.name
    context = ViewContext(f"site '{name}', {request.path(section).name}", report=result.flaw_collector(name))
    seen = read_annotations(file.train, file.labels, section.view, result.space, context)
    own_test: Annotated | None = None
    if file.test is not None:
        silent = replace(context, report=lambda error: None)  # the training rows have reported a wrong view
        own_test = read_annotations(file.test, file.labels, section.view, result.space, silent)
    refuse_empty(name, seen)
    share = section.test if own_test is None else 0.0
    test, train = draw_test_rows(len(seen.x), share, derive(request.seed, "test", name))
    moments: Moments | None = None
    if not file.images:
        moments = result.moments[name] = fit_moments(seen.x[train])
    result.add(make_site(name, seen, test, train, moments, own_test), section.test)
