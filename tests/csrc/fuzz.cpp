// Feeds the decoders of the C interface valid, cut and damaged bytes, and the encoders too little room. run_asan.sh builds
// it with AddressSanitizer: everything lies in blocks of exactly its size, so one byte too far ends the program.
//
//   fuzz [rounds per decoder, 100000 if not given]
#include <cstdint>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "slimgrad.h"

namespace {

using Bytes = std::vector<uint8_t>;

uint64_t state = 88172645463325252u;
uint64_t random_below(uint64_t limit) {  // xorshift: the same bytes on every machine
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % limit;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Block = std::unique_ptr<uint8_t, Free>;

Block block_of(size_t nbytes) { return Block(static_cast<uint8_t*>(std::malloc(nbytes ? nbytes : 1))); }

// Some values and the two functions that write and read them.
struct Subject {
  std::string decoder;
  std::string what;
  Bytes values;
  bool is_lossless;
  std::function<int64_t(uint8_t* out, int64_t capacity, int threads)> pack;
  std::function<int64_t(const uint8_t* data, int64_t nbytes, void* out, int threads)> unpack;
  Bytes payload = {};
};

[[noreturn]] void fail(const Subject& subject, const char* what) {
  std::fprintf(stderr, "%s, %s, on %s: %s\n", subject.decoder.c_str(), subject.what.c_str(), slimgrad_isa(), what);
  std::exit(1);
}

// Unpack a copy of the bytes that ends where its memory ends.
int64_t unpack_alone(const Subject& subject, const Bytes& data, Bytes& out, int threads) {
  const Block copy = block_of(data.size()), place = block_of(out.size());
  if (!data.empty()) std::memcpy(copy.get(), data.data(), data.size());
  std::memset(place.get(), 0xaa, out.size());
  const int64_t status = subject.unpack(copy.get(), static_cast<int64_t>(data.size()), place.get(), threads);
  const bool is_known = status == 0 || status == SLIMGRAD_CORRUPT || status == SLIMGRAD_BAD_ARGUMENT;
  if (!is_known) fail(subject, "expected 0 or an error of the interface");
  std::memcpy(out.data(), place.get(), out.size());
  return status;
}

void check_valid(const Subject& subject) {
  for (int threads = 1; threads <= 2; ++threads) {
    Bytes out(subject.values.size());
    if (unpack_alone(subject, subject.payload, out, threads) != 0) fail(subject, "a valid payload was refused");
    if (subject.is_lossless && out != subject.values) fail(subject, "the values did not come back");
  }
}

void check_room(const Subject& subject) {
  const size_t used = subject.payload.size();
  for (const size_t capacity : {used, used - 1, used / 2, size_t{1}, size_t{0}})
    for (int threads = 1; threads <= 2; ++threads) {
      const Block out = block_of(capacity);
      const int64_t status = subject.pack(out.get(), static_cast<int64_t>(capacity), threads);
      if (status > static_cast<int64_t>(capacity)) fail(subject, "more bytes than there is room for");
      if (capacity == used && status == static_cast<int64_t>(used) && std::memcmp(out.get(), subject.payload.data(), used))
        fail(subject, "other bytes in a tight place");
    }
}

void check_cut(const Subject& subject) {
  Bytes out(subject.values.size());
  for (size_t length = 0; length < subject.payload.size(); ++length)
    unpack_alone(subject, Bytes(subject.payload.data(), subject.payload.data() + length), out, 1);
}

Bytes damaged(const Bytes& valid) {
  Bytes data = valid;
  const uint64_t kind = random_below(6);
  if (kind == 0) {
    data.resize(random_below(2 * valid.size() + 1));
    for (auto& byte : data) byte = static_cast<uint8_t>(random_below(256));
    return data;
  }
  if (kind == 1) data.resize(random_below(valid.size()));
  if (kind == 2) data.resize(valid.size() + 1 + random_below(16), static_cast<uint8_t>(random_below(256)));
  for (uint64_t changes = 1 + random_below(4); changes > 0 && !data.empty(); --changes) {
    const uint64_t reaches[3] = {16, 80, data.size()};  // the front holds most of the structure
    const uint64_t reach = reaches[random_below(3)];
    uint8_t& byte = data[random_below(reach < data.size() ? reach : data.size())];
    const uint8_t choices[4] = {static_cast<uint8_t>(byte ^ (1u << random_below(8))), 0, 255,
                                static_cast<uint8_t>(random_below(256))};
    byte = choices[random_below(4)];
  }
  return data;
}

// ---- what is packed -------------------------------------------------------------------------------------------------

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void add(std::vector<Subject>& subjects, Subject subject) {
  Bytes room(4 * subject.values.size() + 4096);
  const int64_t used = subject.pack(room.data(), static_cast<int64_t>(room.size()), 1);
  if (used <= 0) fail(subject, "the values of this test do not pack");
  room.resize(static_cast<size_t>(used));
  subject.payload = room;
  subjects.push_back(std::move(subject));
}

template <class T>
void add_words(std::vector<Subject>& subjects, int64_t n) {
  using Pack = int64_t (*)(const void*, int64_t, int32_t, uint8_t*, int64_t, int);
  using Unpack = int64_t (*)(const uint8_t*, int64_t, void*, int64_t, int32_t, int);
  constexpr int32_t kSize = sizeof(T);
  std::vector<T> sparse(static_cast<size_t>(n)), two(static_cast<size_t>(n));
  for (auto& word : sparse) word = random_below(5) < 2 ? static_cast<T>(random_below(~uint64_t{0}) | 1) : T{0};
  for (auto& word : two) word = random_below(2) ? T{77} : T{200};
  const auto add_code = [&](const char* code, const std::vector<T>& words, Pack pack, Unpack unpack) {
    const Bytes values = bytes_of(words);
    add(subjects, {code, std::to_string(n) + " words of " + std::to_string(kSize) + " bytes", values, true,
                   [=](uint8_t* out, int64_t capacity, int threads) {
                     return pack(values.data(), n, kSize, out, capacity, threads);
                   },
                   [=](const uint8_t* data, int64_t nbytes, void* out, int threads) {
                     return unpack(data, nbytes, out, n, kSize, threads);
                   }});
  };
  add_code("zvc", sparse, slimgrad_pack_zvc, slimgrad_unpack_zvc);
  add_code("rle", sparse, slimgrad_pack_rle, slimgrad_unpack_rle);
  add_code("mask", two, slimgrad_pack_mask, slimgrad_unpack_mask);
}

void add_bits(std::vector<Subject>& subjects, int64_t n, int32_t nbits) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  for (auto& value : values) value = static_cast<int64_t>(random_below(uint64_t{1} << nbits));
  add(subjects, {"bits", std::to_string(n) + " integers of " + std::to_string(nbits) + " bits", bytes_of(values), true,
                 [=](uint8_t* out, int64_t capacity, int threads) {
                   return slimgrad_pack_bits(values.data(), n, nbits, out, capacity, threads);
                 },
                 [=](const uint8_t* data, int64_t nbytes, void* out, int threads) {
                   return slimgrad_unpack_bits(data, nbytes, nbits, static_cast<int64_t*>(out), n, threads);
                 }});
}

void add_window(std::vector<Subject>& subjects, const slimgrad_window& window, int32_t nbits, int64_t maps) {
  std::vector<int64_t> indices;
  for (int64_t map = 0; map < maps; ++map)
    for (int64_t z = 0; z < window.spans[0].output; ++z)
      for (int64_t y = 0; y < window.spans[1].output; ++y)
        for (int64_t x = 0; x < window.spans[2].output; ++x)
          for (int64_t c = 0; c < window.channels; ++c) {
            int64_t index = 0;
            const int64_t at[3] = {z, y, x};
            for (int dim = 0; dim < 3; ++dim) {
              const slimgrad_span& s = window.spans[dim];
              int64_t place;
              do {
                const int64_t step = static_cast<int64_t>(random_below(static_cast<uint64_t>(s.kernel)));
                place = at[dim] * s.stride - s.padding + step * s.dilation;
              } while (place < 0 || place >= s.input);
              index = index * s.input + place;
            }
            indices.push_back(index);
          }
  const int64_t n = static_cast<int64_t>(indices.size());
  add(subjects, {"window", std::to_string(n) + " offsets of " + std::to_string(nbits) + " bits", bytes_of(indices), true,
                 [=](uint8_t* out, int64_t capacity, int threads) {
                   return slimgrad_pack_window(indices.data(), n, &window, nbits, out, capacity, threads);
                 },
                 [=](const uint8_t* data, int64_t nbytes, void* out, int threads) {
                   return slimgrad_unpack_window(data, nbytes, &window, nbits, static_cast<int64_t*>(out), n, threads);
                 }});
}

// A geometry of any numbers, plausible ones and others, with offsets and indices that do not belong to it.
void check_any_geometry(int64_t rounds) {
  for (int64_t round = 0; round < rounds; ++round) {
    slimgrad_window window;
    for (slimgrad_span& span : window.spans)
      for (int64_t* number : {&span.input, &span.output, &span.kernel, &span.stride, &span.padding, &span.dilation})
        *number = static_cast<int64_t>(random_below(20) ? random_below(9) : random_below(~uint64_t{0}) >> random_below(64));
    window.channels = static_cast<int64_t>(random_below(4));
    const int32_t nbits = static_cast<int32_t>(1 + random_below(9));
    std::vector<int64_t> indices(50), again(50);
    for (auto& index : indices) index = static_cast<int64_t>(random_below(9) ? random_below(200) : random_below(~uint64_t{0}));
    const Block out = block_of(static_cast<size_t>((50 * nbits + 7) / 8));
    const int64_t nbytes = slimgrad_pack_window(indices.data(), 50, &window, nbits, out.get(), (50 * nbits + 7) / 8, 1);
    if (nbytes < 0) std::memset(out.get(), static_cast<int>(random_below(256)), static_cast<size_t>((50 * nbits + 7) / 8));
    const int64_t status = slimgrad_unpack_window(out.get(), (50 * nbits + 7) / 8, &window, nbits, again.data(), 50, 1);
    if (nbytes >= 0 && (status != 0 || again != indices)) std::fprintf(stderr, "window: indices were lost\n"), std::exit(1);
  }
}

void add_nested(std::vector<Subject>& subjects, int32_t dtype, int64_t n, int64_t channels, int32_t options, double rel,
                int64_t apart = 1) {
  std::vector<float> values(static_cast<size_t>(n));
  for (auto& value : values) {
    value = static_cast<float>(random_below(4000)) / 1000.0f - 1.7f;
    if (&value - values.data() >= apart && random_below(4)) value = *(&value - apart);  // as its neighbour in a map
    if (value < 0 && !options && channels == 1) value = 0;
  }
  Bytes bytes = bytes_of(values);
  if (dtype != SLIMGRAD_FLOAT32) {  // any 16 bits are a number; keep the upper half of the float32, which is bfloat16
    Bytes halves;
    for (size_t i = 0; i < bytes.size(); i += 4) halves.insert(halves.end(), {bytes[i + 2], bytes[i + 3]});
    bytes = halves;
  }
  std::vector<float> edges(static_cast<size_t>(channels));
  for (float& edge : edges) edge = random_below(8) ? static_cast<float>(random_below(4000)) / 1000.0f - 2.0f : NAN;
  const bool has_edges = random_below(2);
  add(subjects, {"nested",
                 std::to_string(n) + " values, dtype " + std::to_string(dtype) + ", channels " + std::to_string(channels) +
                     ", options " + std::to_string(options) + ", rel " + std::to_string(rel),
                 bytes, false,
                 [=](uint8_t* out, int64_t capacity, int threads) {
                   return slimgrad_pack_nested(bytes.data(), n, dtype, channels, 5, apart, options, rel, 0.0,
                                               has_edges ? edges.data() : nullptr, out, capacity, threads);
                 },
                 [=](const uint8_t* data, int64_t nbytes, void* out, int threads) {
                   return slimgrad_unpack_nested(data, nbytes, out, n, dtype, threads);
                 }});
}

std::vector<Subject> all_subjects() {
  std::vector<Subject> subjects;
  for (int64_t n : {1, 100, 333, 16384 + 77}) {
    add_words<uint8_t>(subjects, n);
    add_words<uint16_t>(subjects, n);
    add_words<uint32_t>(subjects, n);
    add_words<uint64_t>(subjects, n);
  }
  for (int32_t nbits : {1, 3, 8, 13, 63}) add_bits(subjects, 205, nbits);
  add_bits(subjects, 16384 + 3, 5);
  const slimgrad_span none{1, 1, 1, 1, 0, 1}, three{13, 7, 3, 2, 1, 1}, two{12, 6, 2, 2, 0, 1}, apart{15, 5, 3, 2, 0, 3};
  add_window(subjects, {{none, three, three}, 1}, 4, 3);
  add_window(subjects, {{none, two, three}, 5}, 3, 1);
  add_window(subjects, {{none, none, two}, 1}, 1, 4);
  add_window(subjects, {{two, three, apart}, 2}, 5, 1);
  for (int32_t dtype : {SLIMGRAD_FLOAT32, SLIMGRAD_FLOAT16, SLIMGRAD_BFLOAT16})
    for (double rel : {0.02, 0.5}) {
      add_nested(subjects, dtype, 500, 1, 0, rel);
      add_nested(subjects, dtype, 500, 4, 0, rel);
      add_nested(subjects, dtype, 500, 4, SLIMGRAD_CENTRED, rel);
      add_nested(subjects, dtype, 500, 4, SLIMGRAD_CENTRED, rel, 70);
      add_nested(subjects, dtype, 16384 + 5, 1, 0, rel, 24);
    }
  return subjects;
}

// Damage payloads of one decoder, the short ones more often than the long ones. Returns false when nothing was refused,
// or everything: then the damage would not have tested much.
bool check_damaged(const std::string& decoder, const std::vector<Subject>& subjects, int64_t rounds) {
  std::vector<const Subject*> chosen;
  for (const Subject& subject : subjects)
    if (subject.decoder == decoder) chosen.insert(chosen.end(), subject.values.size() < 10000 ? 20 : 1, &subject);
  int64_t refused = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    const Subject& subject = *chosen[random_below(chosen.size())];
    Bytes out(subject.values.size());
    refused += unpack_alone(subject, damaged(subject.payload), out, round % 500 == 0 ? 2 : 1) != 0;
  }
  std::printf("%s on %s: %lld damaged payloads, %lld refused\n", decoder.c_str(), slimgrad_isa(),
              static_cast<long long>(rounds), static_cast<long long>(refused));
  return 0 < refused && refused < rounds;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 100000;
  std::vector<std::string> isas;
  for (const char* isa : {"portable", "avx2", "avx512"})
    if (slimgrad_use_isa(isa) == 0) isas.push_back(isa);
  const int64_t share = (rounds + static_cast<int64_t>(isas.size()) - 1) / static_cast<int64_t>(isas.size());
  const std::vector<Subject> subjects = all_subjects();
  for (const std::string& isa : isas) {
    slimgrad_use_isa(isa.c_str());
    for (const Subject& subject : subjects) {
      check_valid(subject);
      check_room(subject);
      if (subject.values.size() < 10000) check_cut(subject);
    }
    check_any_geometry(share);
    for (const char* decoder : {"zvc", "rle", "mask", "bits", "window", "nested"})
      if (!check_damaged(decoder, subjects, share)) return 1;
  }
  return 0;
}
