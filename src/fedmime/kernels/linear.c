/* Two of the three products of a dense layer with weights w [out, in] on n examples:

       inner_products  x w^T [n, out]   outputs for inputs x [n, in]
       outer_sum       d^T a [out, in]  the gradient of the weights for inputs a [n, in], cotangents d [n, out]

   A federated mini-batch has ten or twenty rows. XLA runs these products at less than half of the CPU's peak on so
   few rows: its routines are made for large matrices, and preparing them costs more than the product. Here the
   operands are multiplied where they lie, and tiles keep all sums in registers. XLA multiplies larger and narrower
   operands (see ops.py), and is as fast at the third product, d w.

   Where a row is no whole number of vectors, its last vector overlaps the one before it. So nothing is read or
   written beyond the end of a row, but no row may be shorter than a vector. */
#include "vectors.h"

enum { MOST_TERMS = 4, SPAN = WIDEST * LANES }; /* arrays that outer_sum can add in one pass; columns of a tile */
enum { CACHED = 1 << 13 };                      /* numbers, 32 kB, that stay in the first-level cache */

/* Arrays [out, in] that are added to a sum of outer products, each times its scale, which is not zero. */
typedef struct {
    int64_t count;
    float scales[MOST_TERMS];
    const float *arrays[MOST_TERMS];
} terms;

/* One tile of outer_sum, at row r0 and column c of the result `to` [out, in]:

       to[r0 + r][c + j] = sum over k of a[k * out + r] * b[k * in + j] + terms

   a, b   the cotangents from column r0 on and the inputs from column c on, both [depth, ...].
   fresh  LANES, or less for a vector that overlaps the one before it: then only the last `fresh` columns are stored,
          because the others have been computed and the result may share memory with a term.

   Terms are added in reverse order: small numbers are summed before they are added to a model's weights, the first
   term, which loses fewer bits. */
INLINE void outer(int rows, int width, int64_t depth, const float *a, int64_t out, const float *b, int64_t in,
                  const terms *plus, float *to, int64_t r0, int64_t c, int64_t fresh) {
    int64_t place = r0 * in + c;
    vec sums[SUMS] = {};
    product_ahead(rows, width, depth, a, 1, out, b, in, plus->count ? to + place + width * LANES : NULL, in, sums);
    for (int64_t t = plus->count; t--;) {
        vec scale = all(plus->scales[t]);
        const float *from = plus->arrays[t] + place;
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < width; v++) sums[r * width + v] += scale * load(from + r * in + v * LANES);
    }
    if (fresh == LANES)
        store_tile(rows, width, sums, to + place, in);
    else
        for (int r = 0; r < rows; r++) store_last(to + place + r * in, sums[r * width], fresh);
}

/* The tiles of outer_sum in rows r0, ..., r0 + rows - 1 and columns [c, end): first tiles of full width, then single
   vectors, then the vector that overlaps. c is a multiple of SPAN. */
INLINE void outer_rows(int rows, int width, int64_t depth, const float *a, int64_t out, const float *b, int64_t in,
                       const terms *plus, float *to, int64_t r0, int64_t c, int64_t end) {
    for (; c + width * LANES <= end; c += width * LANES)
        outer(rows, width, depth, a, out, b + c, in, plus, to, r0, c, LANES);
    for (; c + LANES <= end; c += LANES) outer(rows, 1, depth, a, out, b + c, in, plus, to, r0, c, LANES);
    if (c < end) outer(rows, 1, depth, a, out, b + in - LANES, in, plus, to, r0, in - LANES, in - c);
}

/* XLA target "outer_sum". Arguments: d [n, out], a [n, in], and optionally scales [t] and t terms, each [out, in].
   Result: d^T a plus the terms, each times its scale [out, in]. The first term may share its memory with the result.
   Terms with scale zero are not read, and arguments after the terms are ignored.

   Columns are divided into blocks whose inputs, n rows, fit into the first-level cache (CACHED). */
XLA_FFI_Error *fedmime_outer_sum(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *d = argument(frame, 0)->data, *a = argument(frame, 1)->data;
    float *to = result(frame, 0)->data;
    int64_t n = argument(frame, 0)->dims[0], out = result(frame, 0)->dims[0], in = result(frame, 0)->dims[1];
    terms plus = {0};
    if (frame->args.size > 2) {
        const float *scales = argument(frame, 2)->data;
        for (int64_t t = 0; t < argument(frame, 2)->dims[0]; t++) {
            if (scales[t] == 0) continue;
            plus.scales[plus.count] = scales[t];
            plus.arrays[plus.count++] = argument(frame, 3 + t)->data;
        }
    }
    int64_t blocks = n * in / CACHED + 1;
    int64_t block = (in + blocks * SPAN - 1) / (blocks * SPAN) * SPAN;
    for (int64_t c = 0; c < in; c += block)
        for (int64_t r = 0; r < out;) {
            int rows = next_rows(out - r, WIDEST);
            ROWS(outer_rows, rows, WIDEST, n, d + r, out, a, in, &plus, to, r, c, c + block < in ? c + block : in)
            r += rows;
        }
    return NULL;
}

/* Lane numbers of the shuffles below. */
#define EVEN(i) 2 * (i)
#define ODD(i) 2 * (i) + 1
#define NEIGHBOUR(i) (i) ^ 1
#define NEXT_PAIR(i) (i) ^ 2
#define QUARTER(i) (i) % 4 * (LANES / 4)

/* Sums of pairs of adjacent lanes: the pairs of a in the lower half of the result, those of b in the upper half. */
INLINE vec halves(vec a, vec b) {
    return __builtin_shufflevector(a, b, LIST(EVEN)) + __builtin_shufflevector(a, b, LIST(ODD));
}

/* The sums over all lanes of a, b, c and d, each repeated in one quarter of the result. Summing four vectors at a time
   takes about half the shuffles of summing them one by one. */
INLINE vec totals(vec a, vec b, vec c, vec d) {
    vec sums = halves(halves(a, b), halves(c, d));
    if (LANES == 16) sums += __builtin_shufflevector(sums, sums, LIST(NEXT_PAIR));
    return sums + __builtin_shufflevector(sums, sums, LIST(NEIGHBOUR));
}

enum { AT_ONCE = 4 }; /* rows of w in a tile: `totals` sums four vectors at a time */

/* One tile of inner_products: `rows` rows of x with four rows of w, over `depth` of their `in` columns. Lanes
   accumulate different columns and are summed at the end.

   more  add to what `to` holds: earlier columns have been there.
   done  how many of the four rows of w an earlier tile has computed. The last four rows overlap the ones before them if
         `out` is no multiple of four, and must not be added twice.
   to    the tile in the result, whose rows are `out` numbers apart. */
INLINE void inner(int rows, int width, int64_t depth, const float *x, const float *w, int64_t in, int more,
                  int64_t done, int64_t out, float *to) {
    vec sums[SUMS] = {};
    int64_t whole = depth / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        vec right[AT_ONCE];
        UNROLL for (int v = 0; v < width; v++) right[v] = held(load(w + v * in + k));
        UNROLL for (int r = 0; r < rows; r++) {
            vec left = held(load(x + r * in + k));
            UNROLL for (int v = 0; v < width; v++) sums[r * width + v] += left * right[v];
        }
    }
    if (whole < depth) { /* the vector that overlaps: lanes that were counted before are masked */
        ints fresh = LANE_NUMBERS >= (int32_t)(LANES - (depth - whole));
        int64_t last = depth - LANES;
        vec right[AT_ONCE];
        UNROLL for (int v = 0; v < width; v++) right[v] = (vec)((ints)load(w + v * in + last) & fresh);
        UNROLL for (int r = 0; r < rows; r++) {
            vec left = (vec)((ints)load(x + r * in + last) & fresh);
            UNROLL for (int v = 0; v < width; v++) sums[r * width + v] += left * right[v];
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        vec *s = sums + r * AT_ONCE, sum = totals(s[0], s[1], s[2], s[3]);
        sum = __builtin_shufflevector(sum, sum, LIST(QUARTER));
        if (more)
            for (int64_t v = done; v < AT_ONCE; v++) to[r * out + v] += sum[v];
        else
            memcpy(to + r * out, &sum, sizeof(float[AT_ONCE]));
    }
}

/* Rows of x and columns that are traversed together. Such a block takes 48 kB and stays in the first-level cache
   while all rows of w pass. */
enum { GROUP = 12, NEAR = 1024 };

/* XLA target "inner_products". Arguments: x [n, in], w [out, in]. Result: x w^T [n, out]. */
XLA_FFI_Error *fedmime_inner_products(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *x = argument(frame, 0)->data, *w = argument(frame, 1)->data;
    float *z = result(frame, 0)->data;
    int64_t n = argument(frame, 0)->dims[0], in = argument(frame, 0)->dims[1], out = argument(frame, 1)->dims[0];
    for (int64_t top = 0; top < n; top += GROUP)
        for (int64_t k = 0; k < in; k += NEAR)
            for (int64_t o = 0; o < out; o += AT_ONCE) {
                int64_t some = n - top < GROUP ? n - top : GROUP, deep = in - k < NEAR ? in - k : NEAR;
                int64_t first = o + AT_ONCE <= out ? o : out - AT_ONCE;
                for (int64_t r = 0; r < some;) {
                    int rows = next_rows(some - r, AT_ONCE);
                    ROWS(inner, rows, AT_ONCE, deep, x + (top + r) * in + k, w + first * in + k, in, k > 0, o - first,
                         out, z + (top + r) * out + first)
                    r += rows;
                }
            }
    return NULL;
}
