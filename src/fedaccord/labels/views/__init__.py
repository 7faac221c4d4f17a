"""How sites observe the true label: one file for each kind of view; importable without torch."""

from fedaccord.evaluation.metrics import NOT_ANNOTATED as NOT_ANNOTATED
from fedaccord.labels.views.base import View as View
from fedaccord.labels.views.candidates import Candidates as Candidates
from fedaccord.labels.views.candidates import CandidatesView as CandidatesView
from fedaccord.labels.views.coarse import Coarse as Coarse
from fedaccord.labels.views.coarse import CoarseView as CoarseView
from fedaccord.labels.views.declaration import LabelArrays as LabelArrays
from fedaccord.labels.views.declaration import ViewContext as ViewContext
from fedaccord.labels.views.declaration import ViewDeclaration as ViewDeclaration
from fedaccord.labels.views.exact import Exact as Exact
from fedaccord.labels.views.exact import ExactView as ExactView
from fedaccord.labels.views.registry import build_view as build_view
from fedaccord.labels.views.registry import check_outside as check_outside
from fedaccord.labels.views.registry import make_view as make_view
from fedaccord.labels.views.registry import view_class as view_class
from fedaccord.labels.views.tags import Tags as Tags
from fedaccord.labels.views.tags import TagsView as TagsView
from fedaccord.labels.views.unlabelled import Unlabelled as Unlabelled
from fedaccord.labels.views.unlabelled import UnlabelledView as UnlabelledView
