"""Methods for candidate sets: pFedPLL, pFedPLL+ and the losses they are compared with."""
