#!/usr/bin/env bash
# Make the virtual environment VENV from cpu.lock with PYTHON: install.sh PYTHON VENV
#
# Needs Python 3.11 and pip, but not python3-venv: the pip of PYTHON installs into the environment.
# TORCH_INDEX: the package index for PyTorch's CPU build, used when pip does not find that build in its own index.
# pip's output goes to VENV/install.log.
set -euo pipefail

python=$1
venv=$2
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
here=$(cd "$(dirname "$0")" && pwd)
lock=$here/cpu.lock
log=$venv/install.log

fail() {
    echo "$*" >&2
    exit 1
}

# Install with pip; return its exit status. Only wheels are taken: nothing is compiled, so no compiler is needed.
pip_install() {
    "$python" -m pip --python "$venv/bin/python" --disable-pip-version-check install \
        --no-deps --progress-bar off "$@" >>"$log" 2>&1
}

# Show the end of the log, then fail.
fail_with_log() {
    tail -n 20 "$log" >&2
    fail "$* The lines above are the last of $log."
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1) ||
    fail "Python 3.11 is needed, but $python does not run; install it, or name another with 'make PYTHON=/path/to/python3.11'."
[ "$version" = 3.11 ] ||
    fail "Python 3.11 is needed, but $python is $version; install it, or name another with 'make PYTHON=/path/to/python3.11'."
"$python" -m pip --version >/dev/null 2>&1 ||
    fail "pip is needed, but $python has none; install it (on Debian: apt install python3-pip)."

echo "Installing into $venv (about 4 GB; this takes minutes the first time). Log of pip: $log"
"$python" -m venv --without-pip "$venv"
: >"$log"

echo "PyTorch ..."
torch=$(grep '^torch==' "$lock")
if ! pip_install --only-binary :all: "$torch"; then
    echo "pip does not find $torch in its own index; trying $torch_index (TORCH_INDEX names another index)."
    pip_install --only-binary :all: --extra-index-url "$torch_index" "$torch" ||
        fail_with_log "$torch cannot be installed; name an index that has it with 'make TORCH_INDEX=URL'."
fi
echo "The other packages ..."
pip_install --only-binary :all: --requirement "$lock" || fail_with_log "A package cannot be installed."
echo "Skim ..."
pip_install --no-build-isolation --editable "$here/.." || fail_with_log "Skim cannot be installed."
