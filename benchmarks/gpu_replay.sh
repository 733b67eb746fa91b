#!/usr/bin/env bash
# Replays allocation logs at full size on a machine with one CUDA GPU. Nothing of simkv is installed there, and no network
# is needed: Python 3.11 or later with torch 2.4 or later, and this checkout.
#
#   benchmarks/gpu_replay.sh             what was found, the tests marked gpu, full-size replays, a table
#   benchmarks/gpu_replay.sh --missing   names the Python packages that this machine lacks
#   benchmarks/gpu_replay.sh --dry-run   the same way on the CPU with tiny replays (or DEVICE=cpu)
#
# PYTHON=python3   which Python
# WHEELS=dir       wheels of what --missing names; they are unpacked into a temporary folder and used from there
# OUT=dir          gets gpu_replay.json; without it nothing is left on disk
#
# Exit: 0 all is well; 1 a replay or a test failed; 2 no CUDA device, or packages are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
if [ -n "${WHEELS:-}" ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
    PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1
"$PYTHON" benchmarks/gpu_replay.py "$@"
