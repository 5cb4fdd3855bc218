#!/usr/bin/env bash
# Makes .venv-oldest with the oldest torch that pyproject.toml promises (requirements/oldest.txt), or
# does nothing when it is there already. Uses uv and the interpreter of .venv (`make setup`).
#
# Ends with 75 where the packages cannot be had here: no room for them, or no network. With another
# number when something is wrong.
#
# Measured with Python 3.11: 3.5 GB are downloaded, 5.3 GB kept in uv's cache and linked from there.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-oldest
uv=$PWD/.venv/bin/uv
room_kib=$((7 * 1024 * 1024))
elsewhere=75
wanted=$({ cat requirements/oldest.txt pyproject.toml scripts/setup_oldest.sh; pwd; } | sha256sum | cut -c1-16)
stamp=$venv/.gpujob-setup
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

# As in scripts/setup.sh: a company's proxy is known to the system's certificates only.
[[ -s /etc/ssl/certs/ca-certificates.crt ]] && export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
unreachable='error sending request|dns error|timed out|could not connect|connection (refused|reset)'
unreachable+='|network (is|was) |server error|no space left on device|disk quota exceeded'

log=$(mktemp)
trap 'rm -f "$log"' EXIT

give_up() { # STATUS TEXT
  rm -rf "$venv"
  echo "setup: the oldest torch: $2" >&2
  exit "$1"
}

# torch without all that it names: what it does not load on a processor is not in the file.
install() {
  "$uv" pip install --python "$venv/bin/python" --no-deps --require-hashes "$@" \
    -r requirements/oldest.txt >"$log" 2>&1
}

check_room() {
  local place free_kib
  place=$("$uv" cache dir)
  mkdir -p "$place"
  for place in "$place" .; do
    free_kib=$(df -Pk "$place" | awk 'NR == 2 {print $4}')
    [[ $free_kib -ge $room_kib ]] ||
      give_up "$elsewhere" "no room: $((free_kib / 1024)) MiB free in $place, $((room_kib / 1024)) are needed"
  done
}

echo "==> $venv with $(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements/oldest.txt)"
rm -rf "$venv"
"$uv" venv --quiet --python .venv/bin/python "$venv"
# What was downloaded before needs neither room nor network.
if ! install --offline; then
  check_room
  echo '    downloading 3.5 GB'
  if ! install; then
    tail -n 20 "$log" >&2
    grep -qiE "$unreachable" "$log" && give_up "$elsewhere" 'its packages cannot be downloaded here'
    give_up 1 'its packages cannot be installed'
  fi
fi
"$uv" pip install --python "$venv/bin/python" --quiet --offline --no-build-isolation --no-deps -e .
echo "$wanted" >"$stamp"
