"""accord: one model from sites whose annotations differ in kind."""
