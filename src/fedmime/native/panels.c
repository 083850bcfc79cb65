/* The product x w^T for many rows x. Weights [out, in] are first laid out in panels: the entries of some rows for one column
   after another, so that a tile of the product is made of whole vectors of them and needs no sums across lanes. */
#include "matrix.h"

enum { PANEL = WIDEST * LANES }; /* rows of w */
enum { DEEP = 1024 };            /* columns that are gone through together: their part of a panel stays in the second cache */

#define LOW(i) (i) / 2 + (i) % 2 * LANES
#define HIGH(i) LANES / 2 + LOW(i)

/* Rows of a square become its columns. */
INLINE void transpose(vec *rows) {
    for (int done = 1; done < LANES; done *= 2) {
        vec mixed[LANES];
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            mixed[2 * i] = __builtin_shufflevector(rows[i], rows[i + LANES / 2], LIST(LOW));
            mixed[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + LANES / 2], LIST(HIGH));
        }
        UNROLL for (int i = 0; i < LANES; i++) rows[i] = mixed[i];
    }
}

/* args: w [out, in]; rets: its panels, one behind another, the last filled up with zeros. */
XLA_FFI_Error *fedmime_panels(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *w = argument(frame, 0)->data;
    float *panels = result(frame, 0)->data;
    int64_t out = argument(frame, 0)->dims[0], in = argument(frame, 0)->dims[1];
    for (int64_t o = 0; o < (out + PANEL - 1) / PANEL * PANEL; o += LANES)
        for (int64_t k = 0; k < in; k += LANES) {
            vec square[LANES];
            for (int64_t r = 0; r < LANES; r++)
                square[r] = o + r < out ? load_some(w + (o + r) * in + k, in - k) : (vec){};
            transpose(square);
            float *to = panels + o / PANEL * PANEL * in + k * PANEL + o % PANEL;
            for (int64_t i = 0; i < LANES && k + i < in; i++) store(to + i * PANEL, square[i]);
        }
    return NULL;
}

/* A few rows of the product, some vectors of columns, of which the last has so many: what some columns of x add to them. */
INLINE void tile(int rows, int width, int64_t depth, const float *x, int64_t in, const float *panel, int first,
                 int64_t last, float *z, int64_t out) {
    vec sums[SUMS] = {};
    if (!first)
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < width; v++)
                sums[r * width + v] = load_some(z + r * out + v * LANES, v + 1 < width ? LANES : last);
    product(rows, width, depth, x, in, 1, panel, PANEL, sums);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < width; v++)
            store_some(z + r * out + v * LANES, sums[r * width + v], v + 1 < width ? LANES : last);
}

#define TILES(width)                                                                                        \
    case width:                                                                                             \
        for (int64_t r = 0; r < n;) {                                                                       \
            int rows = next_rows(n - r, width);                                                             \
            ROWS(tile, rows, width, depth, x + r * in, in, panel, first, last, z + r * out, out)            \
            r += rows;                                                                                      \
        }                                                                                                   \
        break;

/* All rows of the product, the columns of one panel: what some columns of x add to them. */
static void add_panel(int64_t columns, int64_t n, int64_t depth, const float *x, int64_t in, const float *panel, int first,
                      float *z, int64_t out) {
    int64_t width = (columns + LANES - 1) / LANES, last = columns - (width - 1) * LANES;
    switch (width) {
        TILES(1)
        TILES(2)
#ifdef __AVX512F__
        TILES(3)
        TILES(4)
#endif
    }
}

void panel_products(const float *x, int64_t n, int64_t in, const float *panels, int64_t out, float *z) {
    int64_t parts = (in + DEEP - 1) / DEEP, deep = (in + parts - 1) / parts;
    for (int64_t o = 0; o < out; o += PANEL)
        for (int64_t k = 0; k < in; k += deep) {
            int64_t columns = out - o < PANEL ? out - o : PANEL, depth = in - k < deep ? in - k : deep;
            add_panel(columns, n, depth, x + k, in, panels + o * in + k * PANEL, k == 0, z + o, out);
        }
}

/* args: x [n, in], the panels of w [out, in]; rets: x w^T [n, out]. */
XLA_FFI_Error *fedmime_panel_products(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    int64_t n = argument(frame, 0)->dims[0], in = argument(frame, 0)->dims[1], out = result(frame, 0)->dims[1];
    panel_products(argument(frame, 0)->data, n, in, argument(frame, 1)->data, out, result(frame, 0)->data);
    return NULL;
}
