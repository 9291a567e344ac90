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

enum { SLIMGRAD_CORRUPT = -1, SLIMGRAD_NO_ROOM = -2, SLIMGRAD_BAD_ARGUMENT = -3 };
enum { SLIMGRAD_FLOAT32 = 0, SLIMGRAD_FLOAT16 = 1, SLIMGRAD_BFLOAT16 = 2 };

/* ---- which kernels run -------------------------------------------------------------------------------------------- */

#define SLIMGRAD_ABI 1
SLIMGRAD_API int slimgrad_abi(void);
/* Name of the instruction set in use: "avx512", "avx2" or "portable". */
SLIMGRAD_API const char* slimgrad_isa(void);
/* Use this instruction set; returns 0, or SLIMGRAD_BAD_ARGUMENT if the machine or the build does not have it. */
SLIMGRAD_API int slimgrad_use_isa(const char* name);
/* Give the address of an OpenMP runtime's GOMP_parallel, so that kernels share the pool that torch already has. NULL: own
 * short-lived threads. A forked child always runs on one thread, as the pool's threads do not survive the fork. */
SLIMGRAD_API void slimgrad_use_pool(void* gomp_parallel);

/* ---- nested: unary bit planes under an error bound; docs/format.md -------------------------------------------------- */

enum { SLIMGRAD_AFFINE = 1, SLIMGRAD_MIDDLE = 2 };
enum { SLIMGRAD_BLOCK = 16384, SLIMGRAD_MAX_LEVELS = 15, SLIMGRAD_MAX_RICE = 12 };

typedef struct {
  int32_t dtype;
  int32_t flags;    /* SLIMGRAD_AFFINE: y = (x - centre) / scale by channel; SLIMGRAD_MIDDLE: a bin around zero */
  int32_t levels;   /* K, 1 to 15 */
  int32_t rice;     /* low-order bits stored plain, 0 to 12; above 0 needs AFFINE */
  int64_t channels; /* value i belongs to channel (i / inner) % channels */
  int64_t inner;
  const float* thresholds; /* K + 1, rising; used when rice is 0 */
  const float* values;     /* K, what a value above thresholds[k] is restored to; used when rice is 0 */
  const float* scale;      /* one per channel, AFFINE only */
  const float* centre;
} slimgrad_nested;

/* Write index and blocks of n values to out. Never writes beyond capacity. */
SLIMGRAD_API int64_t slimgrad_nested_encode(const void* x, int64_t n, const slimgrad_nested* code, uint8_t* out,
                                            int64_t capacity, int threads);
/* Restore n values. Whatever the bytes, reads only body[0, nbytes) and writes only out[0, n). */
SLIMGRAD_API int64_t slimgrad_nested_decode(const uint8_t* body, int64_t nbytes, const slimgrad_nested* code, void* out,
                                            int64_t n, int threads);

/* Sums over values picked as runs of `run` values every `every` values (run = every: all of them), per channel:
 * out[channel * 4 + {0, 1, 2, 3}] = count, non-zero count, sum, sum of squares; NaN and infinities are left out. */
SLIMGRAD_API int64_t slimgrad_moments(const void* x, int64_t n, int32_t dtype, int64_t channels, int64_t inner,
                                      int64_t run, int64_t every, double* out);
/* From those sums: scale and centre per channel for steps that keep eps = rel x RMS (rel > 0) or `absolute` after every
 * rounding, `reach` steps from the centre; *eps is the largest. SLIMGRAD_BAD_ARGUMENT when float32 has no room for them. */
SLIMGRAD_API int64_t slimgrad_channel_scales(const double* sums, int64_t channels, int32_t dtype, int centred, double rel,
                                             double absolute, int64_t reach, float* scale, float* centre, double* eps);

#ifdef __cplusplus
}
#endif
#endif
