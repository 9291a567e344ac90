#!/bin/sh
# Builds csrc with AddressSanitizer and UndefinedBehaviorSanitizer and runs fuzz.cpp against it, for every instruction set
# of this machine. Arguments go to the program: the number of damaged payloads per decoder.
set -eu
cd "$(dirname "$0")/../.."
build=build/asan
cmake -S . -B "$build" -DSLIMGRAD_SANITIZE=ON >/dev/null
cmake --build "$build" --parallel 2 >/dev/null
${CXX:-c++} -std=c++17 -O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all -Icsrc \
  tests/csrc/fuzz.cpp -L"$build" -lslimgrad_native -Wl,-rpath,"$PWD/$build" -pthread -o "$build/fuzz"
# GCC 12, for one, does not align vectors of 64 bytes on the stack that shows uses after return: a crash
after_return=1
if grep -qw avx512f /proc/cpuinfo 2>/dev/null; then after_return=0; fi
ASAN_OPTIONS=detect_stack_use_after_return=$after_return UBSAN_OPTIONS=print_stacktrace=1 "$build/fuzz" "$@"
