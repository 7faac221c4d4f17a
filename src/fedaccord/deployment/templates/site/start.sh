#!/usr/bin/env bash
# Starts this site's node and keeps it running; Ctrl-C or SIGTERM ends it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${FEDACCORD_BIN:+$FEDACCORD_BIN:}$PATH"
exec python -m fedaccord.engines.flower.node "$here"
