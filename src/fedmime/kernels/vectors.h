/* What all kernels share: vectors of this CPU's width, the inner loop of every matrix product, and access to the
   buffers that XLA passes.

   All numbers are float32. A vector holds as many as one register of the CPU, LANES. Kernels are compiled on the
   machine that runs them, so the width is known to the compiler. GCC's and Clang's vector extensions express the
   arithmetic; there are no intrinsics.

   Every product is computed tile by tile. A tile is a block of the result, `rows` rows by `width` vectors, whose
   sums stay in registers while the depth of the product is traversed. Each number that is loaded from the left
   operand is then used `width` times and each vector from the right operand `rows` times, so that the multiply-add
   units and not the caches limit the speed. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

/* The register file, which decides how large a tile can be.

   LANES      float32 numbers in a vector register: 512 bits with AVX-512, else 256.
   REGISTERS  vector registers of the instruction set.
   SUMS       most registers that a tile uses for its sums.
   WIDEST     width of a tile in vectors, where the kernel is free to choose.

   Besides its sums a tile needs `width` registers for a row of the right operand and one for the number of the left
   operand that is broadcast. FIT is the number of rows that this leaves. MOST_ROWS also respects SUMS and the
   largest case of the switch in ROWS, 12. With the default width this gives tiles of 6 by 4 vectors, or 6 by 2
   without AVX-512. */
#ifdef __AVX512F__
enum { LANES = 16, REGISTERS = 32, SUMS = 24, WIDEST = 4 };
#else
enum { LANES = 8, REGISTERS = 16, SUMS = 12, WIDEST = 2 };
#endif
#define FIT(width) ((REGISTERS - 1 - (width)) / (width))
#define MOST_ROWS(width)                                               \
    (FIT(width) < SUMS / (width) && FIT(width) < 12 ? FIT(width)       \
                                                    : SUMS / (width) < 12 ? SUMS / (width) : 12)

/* The list f(0), f(1), ..., f(LANES - 1): the lane numbers of a shuffle. LANE_NUMBERS are those lanes themselves. */
#ifdef __AVX512F__
#define LIST(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#else
#define LIST(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24") /* no less than SUMS, so that arrays of sums become registers */

/* `loose` is a vector in memory at any address: XLA aligns buffers, but rows within them begin anywhere. */
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define SAME(i) i
#define LANE_NUMBERS ((ints){LIST(SAME)})

/* Load and store LANES numbers; `all` broadcasts one number to every lane. */
INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec v) { *(loose *)p = v; }
INLINE vec all(float a) { return a - (vec){}; }

/* Keep a vector in a register. Without this, compilers fold the load into every multiply-add that uses the vector.
   With 256-bit vectors the load units are the bottleneck, so that a repeated load costs time. */
INLINE vec held(vec v) {
#if defined __x86_64__ && !defined __AVX512F__
    __asm__("" : "+x"(v));
#endif
    return v;
}

/* Partial vectors, n > 0.

   load_some   loads the first n numbers at p and zeros in the other lanes; n >= LANES loads a whole vector.
   store_some  writes the first n lanes to p and leaves the memory after them alone; n >= LANES writes all.
   store_last  writes the last n < LANES lanes only; p is the address of a whole vector, whose other numbers stay. */
INLINE vec load_some(const float *p, int64_t n) {
    if (n >= LANES) return load(p);
    vec v = {};
    memcpy(&v, p, 4 * n);
    return v;
}
INLINE void store_some(float *p, vec v, int64_t n) {
    if (n >= LANES)
        store(p, v);
    else
        memcpy(p, &v, 4 * n);
}
INLINE void store_last(float *p, vec v, int64_t n) {
    ints fresh = LANE_NUMBERS >= (int32_t)(LANES - n);
    store(p, (vec)((fresh & (ints)v) | (~fresh & (ints)load(p))));
}

/* Add a product to the sums of one tile:

       sums[r * width + v] += sum over k < depth of a[r * a_row + k * a_step] * B[k][v * LANES ... (v + 1) * LANES - 1]

   rows, width  size of the tile; constants at every call, so that the loops unroll and the sums stay in registers
   a            left operand; a_row and a_step are the strides of its rows and of the depth
   b, b_step    right operand: row k of B begins at b + k * b_step
   ahead        NULL, or the address of the tile that is written next, with rows `stride` numbers apart; it is
                prefetched for writing, one row per step of the depth, as all at once would delay this tile's loads */
INLINE void product_ahead(int rows, int width, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                          const float *b, int64_t b_step, const float *ahead, int64_t stride, vec *sums) {
    vec s[SUMS];
    UNROLL for (int i = 0; i < rows * width; i++) s[i] = sums[i];
    for (int64_t k = 0; k < depth; k++) {
        vec right[SUMS];
        const float *row = b + k * b_step;
        UNROLL for (int v = 0; v < width; v++) right[v] = held(load(row + v * LANES));
        if (ahead && k < rows)
            UNROLL for (int v = 0; v < width; v++) __builtin_prefetch(ahead + k * stride + v * LANES, 1);
        UNROLL for (int r = 0; r < rows; r++) {
            vec left = all(a[r * a_row + k * a_step]);
            UNROLL for (int v = 0; v < width; v++) s[r * width + v] += left * right[v];
        }
    }
    UNROLL for (int i = 0; i < rows * width; i++) sums[i] = s[i];
}

/* The same without prefetching. */
INLINE void product(int rows, int width, int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b,
                    int64_t b_step, vec *sums) {
    product_ahead(rows, width, depth, a, a_row, a_step, b, b_step, NULL, 0, sums);
}

/* Write the sums of a tile to rows that are `stride` numbers apart. */
INLINE void store_tile(int rows, int width, const vec *sums, float *to, int64_t stride) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < width; v++) store(to + r * stride + v * LANES, sums[r * width + v]);
}

/* An index clamped to a table of n rows. */
INLINE int64_t within(int32_t place, int64_t n) { return place < 0 ? 0 : place < n ? place : n - 1; }

/* Call F(rows, width, ...) with `rows` as a compile-time constant, so that a tile of every height is unrolled. Heights
   above MOST_ROWS(width) would not fit into registers; they never occur and are not compiled. */
#define ROW(n, F, width, ...) \
    case n: if (n <= MOST_ROWS(width)) F(n, width, __VA_ARGS__); break;
#define ROWS(F, rows, width, ...)                                                                            \
    switch (rows) {                                                                                          \
        ROW(1, F, width, __VA_ARGS__) ROW(2, F, width, __VA_ARGS__) ROW(3, F, width, __VA_ARGS__)            \
        ROW(4, F, width, __VA_ARGS__) ROW(5, F, width, __VA_ARGS__) ROW(6, F, width, __VA_ARGS__)            \
        ROW(7, F, width, __VA_ARGS__) ROW(8, F, width, __VA_ARGS__) ROW(9, F, width, __VA_ARGS__)            \
        ROW(10, F, width, __VA_ARGS__) ROW(11, F, width, __VA_ARGS__) ROW(12, F, width, __VA_ARGS__)         \
    }

/* The number of rows of the next tile, when `left` rows remain. The rows are divided evenly among as few tiles as
   possible: 7 rows become 4 + 3 and not 6 + 1, because low tiles reuse each loaded vector less. */
INLINE int next_rows(int64_t left, int width) {
    int64_t tiles = (left + MOST_ROWS(width) - 1) / MOST_ROWS(width);
    return (int)((left + tiles - 1) / tiles);
}

/* tanh of every lane, accurate to two units in the last place.

   With e = exp(2|x|) - 1, tanh|x| = e / (e + 2); the sign of x is restored at the end. The exponential is 2^n
   exp(r) with n the nearest integer to 2|x| / ln 2 and |r| <= ln(2) / 2. ln 2 is subtracted in two parts, of which
   the first has few enough bits for n times it to be exact (Cody and Waite). exp(r) - 1 is its Taylor polynomial of
   degree 7, whose remainder is below the rounding error. 2^n is built from exponent bits. Arguments above 40 are
   clamped: tanh(20) is 1 in float32, and the exponent must not overflow. */
INLINE vec vtanh(vec x) {
    vec twice = x + x;
    vec size = (vec)((ints)twice & 0x7fffffff);
    ints far = size > 40; /* false for NaN, so that NaN is not clamped */
    size = (vec)((far & (ints)all(40)) | (~far & (ints)size));
    vec n = __builtin_convertvector(__builtin_convertvector(size * 1.44269504f + 0.5f, ints), vec);
    vec r = size - n * 0.693145752f - n * 1.42860677e-6f;
    vec p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r;
    vec power = (vec)((__builtin_convertvector(n, ints) + 127) << 23);
    vec e = power * p + (power - 1);
    vec t = e / (e + 2);
    return (vec)((ints)t | ((ints)x & (int32_t)0x80000000));
}
INLINE vec sigmoid(vec x) { return 0.5f + 0.5f * vtanh(0.5f * x); }

/* The i-th argument and the i-th result of a call from XLA. Buffers are dense and row-major. */
INLINE XLA_FFI_Buffer *argument(XLA_FFI_CallFrame *frame, int i) { return frame->args.args[i]; }
INLINE XLA_FFI_Buffer *result(XLA_FFI_CallFrame *frame, int i) { return frame->rets.rets[i]; }
/* Answer XLA's question for the interface version that a kernel was built for. XLA asks it once, by a call with a
   metadata extension and without buffers. Returns 1 for such a call, which the kernel must then end at once. */
INLINE int asks_version(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Extension_Base *more = frame->extension_start;
    while (more && more->type != XLA_FFI_Extension_Metadata) more = more->next;
    if (!more) return 0;
    XLA_FFI_Metadata *facts = ((XLA_FFI_Metadata_Extension *)more)->metadata;
    facts->api_version.major_version = XLA_FFI_API_MAJOR;
    facts->api_version.minor_version = XLA_FFI_API_MINOR;
    return 1;
}

/* The error of a kernel whose scratch space could not be allocated, for XLA to raise in Python. */
INLINE XLA_FFI_Error *no_memory(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Error_Create_Args why = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
        .message = "fedmime: no memory for a kernel's scratch space",
        .errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
    };
    return frame->api->XLA_FFI_Error_Create(&why);
}
