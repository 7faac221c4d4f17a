"""Names of FedHarmony's tasks and of its tensors in messages, memories and the method's state."""

CORRELATE, COUNT, TEACH = "correlate tags", "count tags", "learn correlations"  # tasks
CORRELATION, PAIRS = "correlation", "correlation pairs"  # a site's correlations, and which pairs are informative
TEACHER, TAUGHT = "teacher", "teacher pairs"  # the same of the consensus of the other sites
BLOCKS = "tag blocks"
COUNTS, FREQUENCIES = "tag counts", "tag frequencies"
ALIGNMENT_SHARE = "alignment_share"  # of a site's training time
