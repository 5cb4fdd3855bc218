#!/usr/bin/env bash
# Rewrites the hashed requirements files from pyproject.toml. Needs uv (in .venv after `make setup`).
# EXCLUDE_NEWER=2026-11-14T00:00:00Z sets the day; by default releases younger than 7 days are left
# out, because most malicious uploads are found within days.
#
#   torch.txt     torch with its CUDA packages, apart because TORCH_BACKEND replaces it
#   base.txt      everything else for development
#   uv.txt        the installer
#   build.txt     what builds our wheel
#   operator.txt  the operator image: a subset of base.txt, without torch
#   worker.txt    the worker image: torch.txt and a few more
#   worker-cpu.txt  the same without torch and its CUDA packages, for torch's CPU build
#   oldest.txt    the oldest torch that pyproject.toml promises, and what its tests need; without the
#                 packages that torch does not load on a processor (1.1 GB)
set -euo pipefail
cd "$(dirname "$0")/.."
# As in scripts/setup.sh: a company's proxy is known to the system's certificates only.
[[ -s /etc/ssl/certs/ca-certificates.crt ]] && export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
compile=(.venv/bin/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url
  --no-emit-find-links --universal --python-version 3.11
  --exclude-newer "${EXCLUDE_NEWER:-$(date -u -d '7 days ago' +%FT%TZ)}")
same=(--constraint requirements/torch.txt --constraint requirements/base.txt)

echo 'torch>=2.8' | "${compile[@]}" - -o requirements/torch.txt
mapfile -t gpu_packages < <(grep -oE '^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==' requirements/torch.txt |
  tr -d '=' | grep -v nvidia-ml-py)
skip=()
for package in "${gpu_packages[@]}"; do skip+=(--no-emit-package "$package"); done
"${compile[@]}" --constraint requirements/torch.txt "${skip[@]}" \
  --extra operator --extra worker --extra cli --extra dashboard --extra local --extra bench --extra dev pyproject.toml -o requirements/base.txt
echo 'uv' | "${compile[@]}" - -o requirements/uv.txt
echo 'hatchling' | "${compile[@]}" "${same[@]}" - -o requirements/build.txt
"${compile[@]}" "${same[@]}" --extra operator --extra dashboard pyproject.toml -o requirements/operator.txt
"${compile[@]}" "${same[@]}" --extra worker pyproject.toml -o requirements/worker.txt
"${compile[@]}" "${same[@]}" "${skip[@]}" --extra worker pyproject.toml -o requirements/worker-cpu.txt

oldest=$(sed -n 's/^worker = .*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
sed -nE 's/^([a-z][a-z0-9_-]*==[^\\]+).*/\1/p' requirements/torch.txt requirements/base.txt |
  grep -vE "^($(IFS='|' && echo "${gpu_packages[*]}"))==" >"$pins"
printf '%s\n' "torch==$oldest.*" 'numpy>=2' safetensors xxhash pytest pytest-asyncio pytest-randomly \
  pytest-timeout pytest-xdist hypothesis tqdm aiohttp hatchling editables |
  "${compile[@]}" --constraint "$pins" --no-emit-package triton --no-emit-package nvidia-cusolver-cu12 \
    --no-emit-package nvidia-nvtx-cu12 --no-emit-package nvidia-cuda-nvrtc-cu12 - -o requirements/oldest.txt
