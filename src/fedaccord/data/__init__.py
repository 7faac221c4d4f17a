"""Where samples come from: site data, named data sets, partitions."""
