// Repeats the calls that write_cases.py recorded, here, and compares every byte: payloads and restored values must not
// depend on the machine. Each case runs on one thread, on two, and with flush-to-zero switched on by the caller.
//   replay cases.bin        prints a summary, and the cases that differ; status 1 if there are any
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "slimgrad.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

enum Code : int64_t { kNested, kZvc, kRle, kMask, kBits, kWindow };

struct Header {  // HEADER of write_cases.py
  int64_t code, type, n;
  int64_t numbers[20];
  double rel, absolute;
  int64_t values_nbytes, payload_nbytes, restored_nbytes;
};

struct Case : Header {
  std::vector<uint8_t> values, payload, restored;
};

bool read_into(std::vector<uint8_t>& bytes, int64_t nbytes, std::FILE* file) {
  bytes.resize(static_cast<size_t>(nbytes));
  return std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size();
}

bool read_case(Case& c, std::FILE* file) {
  return std::fread(static_cast<Header*>(&c), sizeof(Header), 1, file) == 1 &&
         read_into(c.values, c.values_nbytes, file) && read_into(c.payload, c.payload_nbytes, file) &&
         read_into(c.restored, c.restored_nbytes, file);
}

slimgrad_window window_of(const Case& c) {
  slimgrad_window window;
  std::memcpy(&window, c.numbers, sizeof window);
  return window;
}

int64_t encode(const Case& c, std::vector<uint8_t>& out, int threads) {
  const void* x = c.values.data();
  const auto* integers = reinterpret_cast<const int64_t*>(c.values.data());
  const auto room = static_cast<int64_t>(out.size());
  const auto type = static_cast<int32_t>(c.type), first = static_cast<int32_t>(c.numbers[0]);
  const slimgrad_window window = window_of(c);
  switch (c.code) {
    case kNested:
      return slimgrad_pack_nested(x, c.n, type, c.numbers[0], c.numbers[1], c.numbers[2],
                                  static_cast<int32_t>(c.numbers[3]), c.rel, c.absolute, nullptr, out.data(), room,
                                  threads);
    case kZvc: return slimgrad_pack_zvc(x, c.n, type, out.data(), room, threads);
    case kRle: return slimgrad_pack_rle(x, c.n, type, out.data(), room, threads);
    case kMask: return slimgrad_pack_mask(x, c.n, type, out.data(), room, threads);
    case kBits: return slimgrad_pack_bits(integers, c.n, first, out.data(), room, threads);
    case kWindow:
      return slimgrad_pack_window(integers, c.n, &window, static_cast<int32_t>(c.numbers[19]), out.data(), room, threads);
  }
  return -1;
}

int64_t decode(const Case& c, std::vector<uint8_t>& out, int threads) {
  const uint8_t* payload = c.payload.data();
  auto* integers = reinterpret_cast<int64_t*>(out.data());
  const auto type = static_cast<int32_t>(c.type), first = static_cast<int32_t>(c.numbers[0]);
  const slimgrad_window window = window_of(c);
  switch (c.code) {
    case kNested: return slimgrad_unpack_nested(payload, c.payload_nbytes, out.data(), c.n, type, threads);
    case kZvc: return slimgrad_unpack_zvc(payload, c.payload_nbytes, out.data(), c.n, type, threads);
    case kRle: return slimgrad_unpack_rle(payload, c.payload_nbytes, out.data(), c.n, type, threads);
    case kMask: return slimgrad_unpack_mask(payload, c.payload_nbytes, out.data(), c.n, type, threads);
    case kBits: return slimgrad_unpack_bits(payload, c.payload_nbytes, first, integers, c.n, threads);
    case kWindow:
      return slimgrad_unpack_window(payload, c.payload_nbytes, &window, static_cast<int32_t>(c.numbers[19]), integers,
                                    c.n, threads);
  }
  return -1;
}

// What a caller may have set, as torch.set_flush_denormal(True) does.
void flush_denormals(bool on) {
#if defined(__x86_64__)
  _mm_setcsr(on ? _mm_getcsr() | 0x8040 : _mm_getcsr() & ~0x8040u);
#elif defined(__aarch64__)
  const uint64_t control = on ? uint64_t{1} << 24 : 0;
  asm volatile("msr fpcr, %0" : : "r"(control));
#endif
}

// What differs, or nullptr.
const char* difference(const Case& c, int threads) {
  std::vector<uint8_t> payload(c.values.size() * 5 + 4096 + 8 * static_cast<size_t>(c.numbers[0]), 0xaa);
  if (encode(c, payload, threads) != c.payload_nbytes) return "the length of the payload";
  if (std::memcmp(payload.data(), c.payload.data(), c.payload.size()) != 0) return "the payload";
  if (c.payload_nbytes == 0) return nullptr;  // nested: the values had better stay raw
  std::vector<uint8_t> restored(c.values.size(), 0xaa);
  if (decode(c, restored, threads) != 0) return "the verdict on the payload";
  return restored == c.restored ? nullptr : "a restored value";
}

const char* difference_anyhow(const Case& c) {
  const char* found = difference(c, 1);
  if (!found) found = difference(c, 2);
  flush_denormals(true);
  if (!found) found = difference(c, 1);
  flush_denormals(false);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  std::FILE* file = argc == 2 ? std::fopen(argv[1], "rb") : nullptr;
  if (!file) return std::fprintf(stderr, "expected a file of cases, got %d arguments\n", argc - 1), 2;
  int64_t cases = 0, different = 0, nbytes = 0;
  for (Case c; read_case(c, file); ++cases) {
    nbytes += c.payload_nbytes;
    const char* found = difference_anyhow(c);
    if (!found) continue;
    ++different;
    std::printf("case %lld, code %lld, type %lld, %lld values: %s differs\n", static_cast<long long>(cases),
                static_cast<long long>(c.code), static_cast<long long>(c.type), static_cast<long long>(c.n), found);
  }
  std::fclose(file);
  std::printf("%s: %lld cases, %lld bytes of payload, %lld different\n", slimgrad_isa(), static_cast<long long>(cases),
              static_cast<long long>(nbytes), static_cast<long long>(different));
  return different != 0 || cases == 0;
}
