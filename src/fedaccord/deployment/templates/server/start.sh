#!/usr/bin/env bash
# Starts the server: Flower's SuperLink and the gate for the nodes.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${FEDACCORD_BIN:+$FEDACCORD_BIN:}$PATH"
exec python -m fedaccord.engines.flower.link "$here"
