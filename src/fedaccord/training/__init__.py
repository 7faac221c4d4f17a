"""Local training at a site: objectives, solvers and the training loop."""
