/* The C interface of slimgrad's kernels. No torch, no Python: plain pointers and sizes.
 *
 * Every function is safe to call from several threads at once and never keeps a pointer. Sizes are in values or bytes as
 * named. Encoders return the number of bytes written, decoders 0, and both a negative status on failure.
 * Floating-point state (flush-to-zero, rounding) is set to the IEEE default inside and restored on return.
 */
#ifndef SLIMGRAD_H
#define SLIMGRAD_H

#include <stdint.h>

#if defined(_WIN32)
#define SLIMGRAD_API __declspec(dllexport)
#else
#define SLIMGRAD_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { SLIMGRAD_CORRUPT = -1, SLIMGRAD_NO_ROOM = -2, SLIMGRAD_BAD_ARGUMENT = -3, SLIMGRAD_UNSUITED = -4 };
enum { SLIMGRAD_FLOAT32 = 0, SLIMGRAD_FLOAT16 = 1, SLIMGRAD_BFLOAT16 = 2 };

/* ---- which kernels run -------------------------------------------------------------------------------------------- */

#define SLIMGRAD_ABI 2
SLIMGRAD_API int slimgrad_abi(void);
/* Name of the instruction set in use: "avx512", "avx2" or "portable". */
SLIMGRAD_API const char* slimgrad_isa(void);
/* Use this instruction set; returns 0, or SLIMGRAD_BAD_ARGUMENT if the machine or the build does not have it. */
SLIMGRAD_API int slimgrad_use_isa(const char* name);
/* Give the address of an OpenMP runtime's GOMP_parallel, so that kernels share the pool that torch already has. NULL: own
 * short-lived threads. A forked child always runs on one thread, as the pool's threads do not survive the fork. */
SLIMGRAD_API void slimgrad_use_pool(void* gomp_parallel);

/* ---- nested: unary bit planes under an error bound; docs/format.md -------------------------------------------------- */

enum { SLIMGRAD_AFFINE = 1, SLIMGRAD_MIDDLE = 2 };             /* flags of a payload */
enum { SLIMGRAD_CENTRED = 1, SLIMGRAD_SAMPLED = 2 };           /* options of slimgrad_pack_nested */
enum { SLIMGRAD_BLOCK = 16384, SLIMGRAD_MAX_LEVELS = 15, SLIMGRAD_MAX_RICE = 12 };

/* Write the payload of n values to out and return its length; 0 when the values had better stay raw.
 * The bound is rel x RMS when rel > 0, else `absolute`; value i belongs to channel (i / inner) % channels, and value
 * i - apart is its neighbour in a map: what they share costs less. Any `apart` from 1 on is right.
 * SLIMGRAD_CENTRED: code the distance from the channel's mean, signs are not kept. SLIMGRAD_SAMPLED: RMS of a sample.
 * `edges`, one per channel, or null: of a centred code, values are restored on the side of the edge on which they were,
 * but for rounding; an edge that is no number, or beyond what is coded in steps, is left out. */
SLIMGRAD_API int64_t slimgrad_pack_nested(const void* x, int64_t n, int32_t dtype, int64_t channels, int64_t inner,
                                          int64_t apart, int32_t options, double rel, double absolute,
                                          const float* edges, uint8_t* out, int64_t capacity, int threads);
/* Restore n values. Whatever the bytes, reads only payload[0, nbytes) and writes only out[0, n). */
SLIMGRAD_API int64_t slimgrad_unpack_nested(const uint8_t* payload, int64_t nbytes, void* out, int64_t n, int32_t dtype,
                                            int threads);

/* The same for values of one form, so that a caller prepares once what does not change: arguments cost time to pass. */
typedef struct {
  int64_t n, channels, inner, apart, capacity;
  double rel, absolute;
  int32_t dtype, options;
} slimgrad_nested_form;

SLIMGRAD_API int64_t slimgrad_pack_nested_form(const slimgrad_nested_form* form, const void* x, const float* edges,
                                               uint8_t* out, int threads);
SLIMGRAD_API int64_t slimgrad_unpack_nested_form(const slimgrad_nested_form* form, const uint8_t* payload, int64_t nbytes,
                                                 void* out, int threads);

/* ---- lossless: words of 1, 2, 4 or 8 bytes at any address; docs/format.md ------------------------------------------- */

/* Every pack function writes at most capacity bytes. SLIMGRAD_NO_ROOM: they would be more. SLIMGRAD_UNSUITED: these values
 * cannot be written this way. Every unpack function reads only the nbytes given and writes only n words, whatever the bytes. */

/* A bit per word that is not zero, then those words. */
SLIMGRAD_API int64_t slimgrad_pack_zvc(const void* words, int64_t n, int32_t size, uint8_t* out, int64_t capacity,
                                       int threads);
SLIMGRAD_API int64_t slimgrad_unpack_zvc(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size,
                                         int threads);
/* Runs of zero words and runs of others. */
SLIMGRAD_API int64_t slimgrad_pack_rle(const void* words, int64_t n, int32_t size, uint8_t* out, int64_t capacity,
                                       int threads);
SLIMGRAD_API int64_t slimgrad_unpack_rle(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size,
                                         int threads);
/* Two words that may occur, and a bit for each word. UNSUITED: there is a third. */
SLIMGRAD_API int64_t slimgrad_pack_mask(const void* words, int64_t n, int32_t size, uint8_t* out, int64_t capacity,
                                        int threads);
SLIMGRAD_API int64_t slimgrad_unpack_mask(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size,
                                          int threads);
/* Integers in nbits bits, 1 to 63. UNSUITED: one is negative or larger. */
SLIMGRAD_API int64_t slimgrad_pack_bits(const int64_t* values, int64_t n, int32_t nbits, uint8_t* out, int64_t capacity,
                                        int threads);
SLIMGRAD_API int64_t slimgrad_unpack_bits(const uint8_t* data, int64_t nbytes, int32_t nbits, int64_t* values, int64_t n,
                                          int threads);

/* Pooling: output o looks at inputs o * stride - padding + c * dilation, 0 <= c < kernel. Sizes are 1 to 2^30 (padding
 * from 0), the products of the inputs and of the kernels at most 2^31. */
typedef struct {
  int64_t input, output, kernel, stride, padding, dilation;
} slimgrad_span;

typedef struct {
  slimgrad_span spans[3]; /* depth, height, width; 1, 1, 1, 1, 0, 1 for a dimension that is not there */
  int64_t channels;       /* innermost in memory; 1 for contiguous tensors */
} slimgrad_window;

/* Indices into the flattened input as offsets in their window, in nbits bits, 1 to 31. UNSUITED: one is outside. */
SLIMGRAD_API int64_t slimgrad_pack_window(const int64_t* indices, int64_t n, const slimgrad_window* window, int32_t nbits,
                                          uint8_t* out, int64_t capacity, int threads);
SLIMGRAD_API int64_t slimgrad_unpack_window(const uint8_t* data, int64_t nbytes, const slimgrad_window* window,
                                            int32_t nbits, int64_t* indices, int64_t n, int threads);

#ifdef __cplusplus
}
#endif
#endif
