#!/usr/bin/env bash
# install_worker.sh FOLDER REQUIREMENTS cuda|cpu: the worker's packages into a virtual environment of an
# image. The CPU build of torch comes from torch's own package index, which uv knows, and is without a
# locked hash; all other packages have theirs.
set -euo pipefail
folder=$1 requirements=$2 torch=$3

case $torch in
cuda)
  "$folder/bin/pip" install --no-cache-dir --no-compile --require-hashes -r "$requirements/worker.txt"
  ;;
cpu)
  version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$requirements/worker.txt")
  "$folder/bin/pip" install --no-cache-dir --no-compile --require-hashes -r "$requirements/uv.txt"
  install=("$folder/bin/uv" pip install --python "$folder/bin/python" --no-cache --no-deps)
  "${install[@]}" --require-hashes -r "$requirements/worker-cpu.txt"
  "${install[@]}" --torch-backend cpu "torch==$version"
  "$folder/bin/pip" uninstall --quiet --yes uv
  ;;
*)
  echo "install_worker.sh: TORCH must be cuda or cpu; got '$torch'" >&2
  exit 2
  ;;
esac
