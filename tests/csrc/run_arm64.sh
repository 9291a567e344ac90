#!/bin/sh
# Checks by hand that arm64 writes the bytes of x86-64, and reads them: records cases here (write_cases.py), then repeats
# them (replay.cpp) with csrc built for arm64 and run by qemu. Not part of `make test`, as it needs cross tools:
#   apt-get install g++-aarch64-linux-gnu qemu-user && sh tests/csrc/run_arm64.sh
# CXX_ARM64 and RUN_ARM64 name the compiler and the command that runs its programs; PYTHON the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
built=$root/build/arm64
python=${PYTHON:-python3}
cxx=${CXX_ARM64:-aarch64-linux-gnu-g++}
run=${RUN_ARM64-qemu-aarch64}
flags="-std=c++17 -O3 -Wall -Wextra -ffp-contract=off -fno-math-errno"
mkdir -p "$built"

# the library as csrc is now, whatever was installed before
cmake -S "$root" -B "$built/host" >/dev/null
cmake --build "$built/host" >/dev/null
SLIMGRAD_LIBRARY=$(echo "$built"/host/*slimgrad_native.*) PYTHONPATH="$root/src" \
  "$python" "$here/write_cases.py" "$built/cases.bin"
sources=$(find "$root/csrc" -name '*.cpp' ! -name '*_avx*')
$cxx $flags ${CXXFLAGS_ARM64-} -static -pthread -I "$root/csrc" $sources "$here/replay.cpp" -o "$built/replay"
$run "$built/replay" "$built/cases.bin"
