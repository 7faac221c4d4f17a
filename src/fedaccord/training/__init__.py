"""The site's own work: objectives, solvers and the one local loop."""
