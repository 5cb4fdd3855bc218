#!/usr/bin/env bash
# finish_environment.sh FOLDER: makes a virtual environment of an image final, so that two builds of
# the same sources are equal. Bytecode holds a hash of its source and no time, every file has the time
# SOURCE_DATE_EPOCH, and what only installs packages is gone.
set -euo pipefail
folder=$1 epoch=${SOURCE_DATE_EPOCH:-0}

"$folder/bin/pip" uninstall --quiet --yes pip
# Anew also what the environment came with. Templates among packages need not compile; what matters
# is imported by the tests.
PYTHONHASHSEED=0 "$folder/bin/python" -m compileall -q -f --invalidation-mode unchecked-hash "$folder/lib" || true
find "$folder" -exec touch --no-dereference --date="@$epoch" {} +
