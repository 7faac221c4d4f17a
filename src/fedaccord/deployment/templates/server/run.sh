#!/usr/bin/env bash
# Starts a run, or resumes an interrupted one; its folder is in runs/. Exit code 1: its model should not be used.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH="${FEDACCORD_BIN:+$FEDACCORD_BIN:}$PATH"
export FLWR_HOME="$here/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
flwr run "$here/app" deployment --run-config "folder=\"$here\" trust=\"@TRUST@\"" "${@:---stream}" || exit
[ $# -eq 0 ] || exit 0  # the run goes on in the background
newest=$(ls -td "$here"/runs/*/ 2>/dev/null | head -n 1)
! grep -qs '"fatal": true' "$newest/summary.json"  # Flower itself ends with 0 after a failed run
