"""Views by the name of their kind."""

from fedaccord.labels.views.registry import VIEWS as VIEWS
from fedaccord.labels.views.registry import make_view as make_view
