/* The three products of a dense layer with weights [out, in] on some examples. Where a width is no whole number of
   vectors, the last vector of a row overlaps the one before it, so nothing is read or written beyond a row. */
#include "matrix.h"

enum { MOST = 256 }; /* rows that are gone through as they lie, as in calls.py; more are worth packing, see matrix.c */
enum { MOST_TERMS = 4, SPAN = WIDEST * LANES };
enum { LARGE = 1 << 16 }; /* numbers of weights whose terms do not all stay in the second cache */
enum { CACHED = 1 << 13 }; /* numbers of the rows that all rows of the result are made of: they stay in the first cache */

/* Arrays [out, in] to which a sum of outer products is added, each times a number that is not zero. */
typedef struct {
    int64_t count;
    float scales[MOST_TERMS];
    const float *arrays[MOST_TERMS];
} terms;

/* Outer products of more rows, d [m, out] and those of a table that lie here and there. */
typedef struct {
    int64_t count;
    const float *d, *const *rows;
} more_rows;

/* Weights that hold no whole vector: only packing makes them fit. */
static int narrow(int64_t out, int64_t in) { return out < LANES || in < LANES; }

static XLA_FFI_Error *multiplied(XLA_FFI_CallFrame *frame, Matrix a, Matrix b, int64_t rows, int64_t depth,
                                 int64_t columns) {
    return multiply(a, b, rows, depth, columns, result(frame, 0)->data) ? NULL : no_memory(frame);
}

/* A few rows of the result, some columns: to[r][...] = terms + sum over k of a[k][r] * b[k][...], from row r0 and
   column c of the result on. Of a vector that overlaps the one before it only the last `fresh` columns are stored: the
   result may take the place of a term. The first term comes last, so that small numbers meet before they meet a
   model's weights. */
INLINE void outer(int rows, int width, int64_t depth, const float *a, int64_t out, const float *b, int64_t in,
                  const more_rows *more, const terms *plus, float *to, int64_t r0, int64_t c, int64_t fresh) {
    int64_t place = r0 * in + c;
    vec sums[SUMS] = {};
    product_of_rows(rows, width, depth, a, 1, out, b, in, NULL, plus->count ? to + place + width * LANES : NULL, in, sums);
    product_of_rows(rows, width, more->count, more->d + r0, 1, out, NULL, c, more->rows, NULL, 0, sums);
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

/* The same for columns from one to another, the first of them a multiple of a tile's. */
INLINE void outer_rows(int rows, int width, int64_t depth, const float *a, int64_t out, const float *b, int64_t in,
                       const more_rows *more, const terms *plus, float *to, int64_t r0, int64_t c, int64_t end) {
    for (; c + width * LANES <= end; c += width * LANES)
        outer(rows, width, depth, a, out, b + c, in, more, plus, to, r0, c, LANES);
    for (; c + LANES <= end; c += LANES) outer(rows, 1, depth, a, out, b + c, in, more, plus, to, r0, c, LANES);
    if (c < end) outer(rows, 1, depth, a, out, b + in - LANES, in, more, plus, to, r0, in - LANES, in - c);
}

/* Whether a pass begins at the last row. Large weights and momentum together are a little more than the second cache holds:
   with passes that turn round, each finds there what the one before it came to last. */
static int turns(int64_t size, int64_t terms) {
    static _Thread_local int back;
    return terms > 1 && size >= LARGE && (back ^= 1);
}

/* The arguments from the first on: d [n, out], a [n, in], and if there are terms, their scales [terms] and they
   themselves [out, in], of which the first may be the result; what comes after them is not looked at. */
static void outer_sum(XLA_FFI_CallFrame *frame, int first, int64_t n, const more_rows *more) {
    const float *d = argument(frame, first)->data, *a = argument(frame, first + 1)->data;
    float *to = result(frame, 0)->data;
    int64_t out = result(frame, 0)->dims[0], in = result(frame, 0)->dims[1];
    terms plus = {0};
    if (frame->args.size > first + 2) {
        const float *scales = argument(frame, first + 2)->data;
        for (int64_t t = 0; t < argument(frame, first + 2)->dims[0]; t++) {
            if (scales[t] == 0) continue;
            plus.scales[plus.count] = scales[t];
            plus.arrays[plus.count++] = argument(frame, first + 3 + t)->data;
        }
    }
    int64_t blocks = (n + more->count) * in / CACHED + 1;
    int64_t block = (in + blocks * SPAN - 1) / (blocks * SPAN) * SPAN;
    int back = turns(out * in, plus.count);
    for (int64_t c = 0; c < in; c += block)
        for (int64_t done = 0; done < out;) {
            int rows = next_rows(out - done, WIDEST);
            int64_t r = back ? out - done - rows : done;
            ROWS(outer_rows, rows, WIDEST, n, d + r, out, a, in, more, &plus, to, r, c, c + block < in ? c + block : in)
            done += rows;
        }
}

/* rets: the outer products of the rows of d and a, and the terms, added up [out, in]. */
XLA_FFI_Error *fedmime_outer_sum(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const XLA_FFI_Buffer *d = argument(frame, 0), *a = argument(frame, 1), *to = result(frame, 0);
    int64_t n = d->dims[0], out = to->dims[0], in = to->dims[1];
    if ((n > MOST || narrow(out, in)) && frame->args.size == 2)
        return multiplied(frame, (Matrix){d->data, 1, out}, (Matrix){a->data, in, 1}, out, n, in);
    more_rows none = {0};
    outer_sum(frame, 0, n, &none);
    return NULL;
}

#define EVEN(i) 2 * (i)
#define ODD(i) 2 * (i) + 1
#define SAME(i) i
#define NEIGHBOUR(i) (i) ^ 1
#define NEXT_PAIR(i) (i) ^ 2
#define QUARTER(i) (i) % 4 * (LANES / 4)

/* Sums of neighbours, those of a before those of b. */
INLINE vec halves(vec a, vec b) {
    return __builtin_shufflevector(a, b, LIST(EVEN)) + __builtin_shufflevector(a, b, LIST(ODD));
}

/* The totals of four vectors, each in the first lane of its quarter. */
INLINE vec totals(vec a, vec b, vec c, vec d) {
    vec sums = halves(halves(a, b), halves(c, d));
    if (LANES == 16) sums += __builtin_shufflevector(sums, sums, LIST(NEXT_PAIR));
    return sums + __builtin_shufflevector(sums, sums, LIST(NEIGHBOUR));
}

enum { AT_ONCE = 4 }; /* rows of w: their totals are found together */

/* Inner products of a few rows of x with four rows of w, or what more columns of both add to them. Some of these rows of w
   may be done already. */
INLINE void inner(int rows, int width, int64_t depth, const float *x, const float *w, int64_t in, int more, int64_t done,
                  int64_t out, float *to) {
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
    if (whole < depth) { /* the last vector again, without what was counted */
        ints fresh = (ints){LIST(SAME)} >= (int32_t)(LANES - (depth - whole));
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

enum { GROUP = 12, NEAR = 1024 }; /* rows of x and columns that are gone through together: they stay in the first cache */

void inner_products(const float *x, int64_t n, int64_t in, const float *w, int64_t out, float *z) {
    for (int64_t top = 0; top < n; top += GROUP)
        for (int64_t k = 0; k < in; k += NEAR)
            for (int64_t o = 0; o < out; o += AT_ONCE) {
                int64_t some = n - top < GROUP ? n - top : GROUP, deep = in - k < NEAR ? in - k : NEAR;
                int64_t first = o + AT_ONCE <= out ? o : out - AT_ONCE;
                for (int64_t r = 0; r < some;) {
                    int rows = next_rows(some - r, AT_ONCE);
                    ROWS(inner, rows, AT_ONCE, deep, x + (top + r) * in + k, w + first * in + k, in, k > 0, o - first, out,
                         z + (top + r) * out + first)
                    r += rows;
                }
            }
}

/* args: x [n, in], w [out, in]; rets: x w^T [n, out]. Both lie as they are multiplied; for many rows see panels.c. */
XLA_FFI_Error *fedmime_inner_products(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *x = argument(frame, 0)->data, *w = argument(frame, 1)->data;
    int64_t n = argument(frame, 0)->dims[0], in = argument(frame, 0)->dims[1], out = argument(frame, 1)->dims[0];
    if (narrow(out, in)) return multiplied(frame, (Matrix){x, in, 1}, (Matrix){w, 1, in}, n, in, out);
    inner_products(x, n, in, w, out, result(frame, 0)->data);
    return NULL;
}

enum { BLOCK = 64, DEPTH = 256 }; /* columns and rows of w that are gone through together */

/* Some columns of a few rows of d w, or what some more rows of w add to them. */
INLINE void add_part(int rows, int width, int64_t depth, const float *d, int64_t out, const float *w, int64_t in,
                     int first, int64_t fresh, float *z) {
    vec sums[SUMS] = {};
    if (!first)
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < width; v++) sums[r * width + v] = load(z + r * in + v * LANES);
    product(rows, width, depth, d, out, 1, w, in, sums);
    if (fresh == LANES)
        store_tile(rows, width, sums, z, in);
    else
        for (int r = 0; r < rows; r++) store_last(z + r * in, sums[r * width], fresh);
}

INLINE void add_parts(int rows, int width, int64_t depth, const float *d, int64_t out, const float *w, int64_t in,
                      int64_t c, int64_t end, int first, float *z) {
    for (; c + width * LANES <= end; c += width * LANES)
        add_part(rows, width, depth, d, out, w + c, in, first, LANES, z + c);
    for (; c + LANES <= end; c += LANES) add_part(rows, 1, depth, d, out, w + c, in, first, LANES, z + c);
    if (c < end) add_part(rows, 1, depth, d, out, w + in - LANES, in, first, in - c, z + in - LANES);
}

void products(const float *d, int64_t n, int64_t out, const float *w, int64_t in, int more, float *z) {
    for (int64_t c = 0; c < in; c += BLOCK)
        for (int64_t k = 0; k < out; k += DEPTH)
            for (int64_t r = 0; r < n;) {
                int rows = next_rows(n - r, WIDEST);
                ROWS(add_parts, rows, WIDEST, k + DEPTH < out ? DEPTH : out - k, d + r * out + k, out, w + k * in, in, c,
                     c + BLOCK < in ? c + BLOCK : in, !more && k == 0, z + r * in)
                r += rows;
            }
}

/* args: d [n, out], w [out, in]; rets: d w [n, in]. */
XLA_FFI_Error *fedmime_products(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *d = argument(frame, 0)->data, *w = argument(frame, 1)->data;
    int64_t n = argument(frame, 0)->dims[0], out = argument(frame, 1)->dims[0], in = argument(frame, 1)->dims[1];
    if (n > MOST || narrow(out, in)) return multiplied(frame, (Matrix){d, out, 1}, (Matrix){w, in, 1}, n, out, in);
    products(d, n, out, w, in, 0, result(frame, 0)->data);
    return NULL;
}
