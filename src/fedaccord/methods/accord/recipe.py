"""accord: one model from sites with different kinds of annotations (docs/methods.md 3.1).

Every site minimises the negative log-likelihood of its annotations under its view, or at candidate sites a loss with
label confidences. The encoder is averaged over all sites, each head row over the sites whose annotations inform its
label, by sample count. A site may add the log of its label frequencies to the logits (`prior`); they never leave the
site. Labelled samples of the server are one more site (`labelled_server.py`), and the meaning of coarse names is
estimated at sites that do not declare it (`unexplained_names.py`). After the last round every site fits experts of its
own (`personal.py`), and the server may train the global model on its labelled samples.
"""

from __future__ import annotations

from functools import partial

from fedaccord.federation.pooled_correspondence import COUNT, PooledCounts
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.methods.accord.labelled_server import OneMoreSite, TrainOn
from fedaccord.methods.accord.objective import AccordLoss
from fedaccord.methods.accord.parts import brief_additions, parts_of
from fedaccord.methods.accord.personal import FIT, WEIGH, fit_experts, weigh_experts
from fedaccord.methods.accord.server import Personalise
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.accord.unexplained_names import count_names, require_meaning, unexplained_sites
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.training.regularisation import Regularised


def accord(settings: AccordSettings) -> Recipe:
    """Return the recipe of `accord`."""
    loss = AccordLoss()
    recipe = Recipe(
        settings,
        None,
        Regularised(loss) if settings.regularise else loss,
        sharing=share_model(settings),
        tasks={
            WEIGH: partial(weigh_experts, settings=settings),
            FIT: partial(fit_experts, settings=settings),
            COUNT: count_names,
        },
        exchange=Exchange(partial(brief_additions, settings)),
        ready=(require_meaning,),
        prepare=(PooledCounts(sites=unexplained_sites),),
        refine=(OneMoreSite(),),
        trains="sites, and server if labelled",
        parts=partial(parts_of, settings),
        conclude=(TrainOn(),) if settings.personal == "off" else (Personalise(settings), TrainOn()),
    )
    return with_aggregation(recipe, settings, rows_by_owner=True)
