"""accord against its rivals on data sets of every kind of label, and FLamby's heart disease."""
