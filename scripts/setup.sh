#!/usr/bin/env bash
# Makes .venv with exactly the packages in requirements/, or does nothing when they are in already.
#
# PYTHON=/path/to/python   the interpreter to use (default: the newest of 3.13, 3.12, 3.11, python3)
# TORCH_BACKEND=cpu|auto   takes torch from its own package index instead of PyPI; the CPU build is
#                          200 MB instead of 5 GB. Only torch itself is then without a locked hash.
#                          The choice is remembered; TORCH_BACKEND=pypi goes back.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
installed_backend=$(cat "$venv/.gpujob-torch" 2>/dev/null || true)
backend=${TORCH_BACKEND:-${installed_backend:-pypi}}
wanted=$({ cat requirements/*.txt pyproject.toml scripts/setup.sh; echo "backend=$backend"; pwd; } |
  sha256sum | cut -c1-16)
stamp=$venv/.gpujob-setup
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

# uv brings certificates of its own; a company's proxy is known only to the system's.
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
  [[ -s $bundle ]] && export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
done

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

usable() { # 3.11 or newer, and able to make a virtual environment (Debian splits that off)
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local name
  for name in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if usable "$name"; then
      command -v "$name"
      return
    fi
  done
  echo "setup: no usable Python: need 3.11 or newer with the venv module" >&2
  echo "       (on Debian and Ubuntu: apt-get install python3-venv). Tried: ${PYTHON:-3.13 3.12 3.11 python3}" >&2
  return 1
}

make_environment() {
  local python free_kib
  if ! usable "$venv/bin/python" || [[ ${installed_backend:-$backend} != "$backend" ]]; then
    python=$(find_python)
    say "1/4 virtual environment in $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
  else
    say "1/4 virtual environment in $venv is there, bringing it up to date"
    return
  fi
  free_kib=$(df -Pk "$venv" | awk 'NR == 2 {print $4}')
  if [[ $backend == pypi && $free_kib -lt $((9 * 1024 * 1024)) ]]; then
    echo "setup: warning: $((free_kib / 1024 / 1024)) GB free here; torch's CUDA build wants about 9 GB" >&2
  fi
}

install_torch() {
  local version
  if [[ $backend == pypi ]]; then
    say "3/4 packages; torch is a 5 GB CUDA build, the first download takes a while"
    echo "    (TORCH_BACKEND=cpu make setup chooses the small one if your network reaches its index)"
    return
  fi
  version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements/torch.txt)
  say "3/4 torch $version, backend $backend, then the other packages"
  "$venv/bin/uv" pip install --python "$venv/bin/python" --torch-backend "$backend" "torch==$version" || {
    echo "setup: torch's package index was not reached; without TORCH_BACKEND torch comes from PyPI" >&2
    return 1
  }
}

make_environment
say "2/4 uv, which installs the rest (25 MB)"
"$venv/bin/python" -m pip install --quiet --require-hashes -r requirements/uv.txt
install_torch
files=(-r requirements/base.txt)
[[ $backend == pypi ]] && files+=(-r requirements/torch.txt)
"$venv/bin/uv" pip install --python "$venv/bin/python" --require-hashes "${files[@]}"
say "4/4 GPUJob itself, editable"
"$venv/bin/uv" pip install --python "$venv/bin/python" --quiet --no-build-isolation --no-deps -e .
echo "$backend" >"$venv/.gpujob-torch"
echo "$wanted" >"$stamp"
say "ready: $(du -shx "$venv" | cut -f1) in $venv"
