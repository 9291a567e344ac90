#!/bin/sh
# Make the virtual environment $1 and install into it what development needs, the package itself as src/.
#
# A torch >= 2.8 of the user's Python is used, whether that Python is a system, conda or virtual environment one. Else
# torch is installed first, alone and pinned, and nothing below asks for it again: another way of asking could bring
# gigabytes of GPU libraries to a machine without a GPU. For the same reason pip builds without isolation.
set -eu
venv=$1
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

has_torch() {
    "$1" -c 'import importlib.metadata as m, sys
try: sys.exit(tuple(int(n) for n in m.version("torch").split(".")[:2]) < (2, 8))
except m.PackageNotFoundError: sys.exit(1)'
}

"$python" -c 'import sys
if sys.version_info < (3, 10): sys.exit("expected Python >= 3.10, got %d.%d; write: make setup PYTHON=python3.12" % sys.version_info[:2])'

if [ ! -x "$venv/bin/python" ]; then
    if has_torch "$python"; then
        "$python" -m venv --system-site-packages "$venv"
    else
        "$python" -m venv "$venv"
    fi
fi
if ! has_torch "$venv/bin/python" && has_torch "$python"; then
    # the user's Python is itself a virtual environment, whose packages --system-site-packages does not pass on
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$python" -c "$purelib" > "$("$venv/bin/python" -c "$purelib")/parent_environment.pth"
fi
has_torch "$venv/bin/python" || "$venv/bin/python" -m pip install torch==2.13.0
"$venv/bin/python" -m pip install -q "scikit-build-core>=0.10"
"$venv/bin/python" -m pip install -q --no-build-isolation -e ".[dev]"
for extra in pysz zfpy zstandard tensorboard; do # tests and tables use them; not every platform has wheels of them
    "$venv/bin/python" -m pip install -q --only-binary :all: "$extra" || echo "without $extra: no wheel for this platform"
done
