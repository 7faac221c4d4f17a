"""pFedMo and the momentum methods it is compared with."""
