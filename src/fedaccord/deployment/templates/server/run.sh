#!/usr/bin/env bash
# Starts a run, or resumes an interrupted one; its folder is in runs/.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${FEDACCORD_BIN:+$FEDACCORD_BIN:}$PATH"
export FLWR_HOME="$here/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flwr run "$here/app" deployment --run-config "folder=\"$here\" trust=\"@TRUST@\"" "${@:---stream}"
