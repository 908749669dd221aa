#!/usr/bin/env bash
# Make the virtual environment VENV from cpu.lock, with PYTHON: install.sh PYTHON VENV
#
# Needs Python 3.11 and pip, not python3-venv: the pip outside installs into the environment.
# TORCH_INDEX: the package index to take PyTorch's CPU build from where pip does not find it by itself.
set -euo pipefail

python=$1
venv=$2
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
here=$(cd "$(dirname "$0")" && pwd)
lock=$here/cpu.lock

fail() {
    echo "$*" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1) ||
    fail "Python 3.11 is needed, but $python does not run; install it, or name another with 'make PYTHON=/path/to/python3.11'."
[ "$version" = 3.11 ] ||
    fail "Python 3.11 is needed, but $python is $version; install it, or name another with 'make PYTHON=/path/to/python3.11'."
"$python" -m pip --version >/dev/null 2>&1 ||
    fail "pip is needed, but $python has none; install it (on Debian: apt install python3-pip)."

echo "Installing into $venv (about 4 GB; minutes the first time)."
"$python" -m venv --without-pip "$venv"
# Only wheels: nothing is compiled, so no compiler is needed.
install=("$python" -m pip --python "$venv/bin/python" --disable-pip-version-check install --quiet --no-deps)

echo "PyTorch ..."
torch=$(grep '^torch==' "$lock")
if ! "${install[@]}" --only-binary :all: "$torch" 2>/dev/null; then
    echo "pip does not find $torch by itself: taking it from $torch_index (TORCH_INDEX chooses another index)."
    "${install[@]}" --only-binary :all: --extra-index-url "$torch_index" "$torch" ||
        fail "$torch cannot be installed (see pip's error above); name an index that has it with 'make TORCH_INDEX=URL'."
fi
echo "The other packages ..."
"${install[@]}" --only-binary :all: --requirement "$lock"
echo "Skim itself ..."
"${install[@]}" --no-build-isolation --editable "$here/.."
