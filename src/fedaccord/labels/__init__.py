"""What an annotation means: the label space, the views, the site prior, corruption and coverage."""
