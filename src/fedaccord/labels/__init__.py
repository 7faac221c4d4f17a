"""What an annotation means: the label space, the views, the site prior and corruption."""
