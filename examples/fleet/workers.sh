#!/bin/bash
# One worker for each GPU of this machine, until none was needed for ten minutes: examples/fleet/workers.sh [DEVICE ...]
# Start it on every machine, in the directory in which the search runs: `autofit tune train.py:make_workload` finds
# train.py there, and so do its workers. AUTOFIT_STUDY is the URL of the database; file:PATH keeps it out of the
# environment. The search: autofit tune train.py:make_workload --study env:AUTOFIT_STUDY
set -euo pipefail
: "${AUTOFIT_STUDY:?is not set: the URL of the database that all machines reach}"
autofit=${AUTOFIT:-.venv/bin/autofit}
devices=("$@")
if [[ ${#devices[@]} == 0 ]]; then
    for number in $(seq 0 $(($(nvidia-smi --list-gpus | wc -l) - 1))); do devices+=("cuda:$number"); done
fi
workers=()
trap 'kill "${workers[@]}" 2>/dev/null || true' INT TERM
for device in "${devices[@]}"; do
    "$autofit" worker --study env:AUTOFIT_STUDY --device "$device" --idle "${IDLE:-10min}" &
    workers+=($!)
done
failed=0
for worker in "${workers[@]}"; do wait "$worker" || failed=$?; done
exit "$failed"
