"""Methods for candidate sets: pFedPLL, its successor here, and the losses it is compared with."""
