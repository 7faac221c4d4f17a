"""Networks that know their encoder and their head."""
