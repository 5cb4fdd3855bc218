#!/usr/bin/env bash
# Rewrites the hashed requirements files from pyproject.toml. Needs uv (in .venv after `make setup`).
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(.venv/bin/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url
  --no-emit-find-links --universal --python-version 3.11 --exclude-newer "${EXCLUDE_NEWER:-$(date -u -d '7 days ago' +%FT%TZ)}")

echo 'torch>=2.8' | "${compile[@]}" - -o requirements/torch.txt
mapfile -t gpu_packages < <(grep -oE '^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==' requirements/torch.txt | tr -d '=' | grep -v nvidia-ml-py)
skip=()
for package in "${gpu_packages[@]}"; do skip+=(--no-emit-package "$package"); done
"${compile[@]}" --constraint requirements/torch.txt "${skip[@]}" \
  --extra operator --extra worker --extra cli --extra local --extra dev pyproject.toml -o requirements/base.txt
echo 'uv' | "${compile[@]}" - -o requirements/uv.txt
