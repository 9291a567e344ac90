#!/bin/sh
# Runs the AVX-512 kernels on a machine that has only AVX2: builds csrc with kernels_avx512.cpp compiled against
# avx512_emulation/, into a library that offers "avx512", and runs the kernel tests of that instruction set with it.
#   sh tests/csrc/run_emulated.sh [arguments of pytest]
#   sh tests/csrc/run_emulated.sh --asan [rounds]       with sanitizers, fuzz.cpp in place of the tests
# CXX and PYTHON name the compiler and the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cxx=${CXX:-c++}
python=${PYTHON:-python3}
avx2="-mavx2 -mbmi -mbmi2 -mlzcnt -mpopcnt -mfma -mf16c"
common="-std=c++17 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -ffp-contract=off -fno-math-errno"
built=$root/build/emulated
if [ "${1-}" = --asan ]; then
  shift
  built=$root/build/emulated_asan
  common="$common -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
  fuzz=$built/fuzz
fi
mkdir -p "$built"

# step 1: the emulation itself, against cases worked out by hand
$cxx $common $avx2 -I "$here/avx512_emulation" "$here/avx512_emulation/test_intrinsics.cpp" -o "$built/test_intrinsics"
"$built/test_intrinsics"

# step 2: one object per source of csrc; those newer than everything they could depend on are kept
compile() {
  object=$built/$(basename "$1" .cpp).o
  case $1 in
    *_avx512.cpp) flags="$avx2 -I $here/avx512_emulation" ;;
    *_avx2.cpp) flags=$avx2 ;;
    *) flags=-DSLIMGRAD_EMULATED_AVX512 ;;
  esac
  if [ -f "$object" ]; then
    [ -n "$(find "$root/csrc" "$here/avx512_emulation" "$here/run_emulated.sh" -newer "$object")" ] || return 0
  fi
  $cxx $common $flags -c "$1" -o "$object"
}
for source in "$root"/csrc/*.cpp; do compile "$source"; done

if [ -n "${fuzz-}" ]; then
  $cxx $common -I "$root/csrc" "$here/fuzz.cpp" "$built"/*.o -pthread -o "$fuzz"
  exec "$fuzz" "$@"
fi

# step 3: the tests; nothing selected, or one skipped because the library lacks avx512, is a failure
library=$built/libslimgrad_emulated.so
$cxx -shared -pthread "$built"/*.o -o "$library"
export SLIMGRAD_LIBRARY="$library" SLIMGRAD_ISA=avx512 PYTHONPATH="$root/src"
cd "$root"
"$python" -c "from slimgrad.kernels import native; assert native.isa() == 'avx512', native.isa()"
exec "$python" -m pytest -q -p no:cacheprovider -k avx512 "$@" \
  tests/kernels/test_nested.py tests/kernels/test_nested_edges.py tests/kernels/test_sparse.py tests/kernels/test_bits.py
