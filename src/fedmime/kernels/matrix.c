/* Products of matrices of any size and layout, for operands that are too large or too narrow for linear.c.

   The scheme is that of BLAS libraries. The right operand is copied block by block into panels as wide as a tile,
   the left operand into stacks as high as a tile. A tile then reads both operands as consecutive memory, whatever
   their strides were, and the blocks stay in the caches while all tiles that need them are computed.

   The product runs on the calling thread. XLA would split it among its thread pool, whose threads are busy with the
   clients of the other devices; the calling thread would wait for them. */
#include <stdlib.h>

#include "matrix.h"

/* Columns and rows of a tile. */
enum { SPAN = WIDEST * LANES, TILE = MOST_ROWS(WIDEST) };

/* Sizes of the packed blocks: [TALL, DEEP] of the left operand takes 96 kB and stays in the second-level cache; [DEEP,
   BROAD] of the right operand takes 1 MB, of which a tile needs one panel of DEEP by SPAN numbers at a time. */
enum { DEEP = 256, TALL = 16 * TILE, BROAD = 1024 };

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The address of an entry of a matrix. */
INLINE const float *at(Matrix m, int64_t row, int64_t column) { return m.data + row * m.down + column * m.right; }

/* Copy rows [top, top + rows) and columns [k, k + depth) of the left operand to [tiles][depth][rows of the tile]. The
   loops are ordered so that the operand is read along its contiguous axis. */
static void pack_left(Matrix a, int64_t top, int64_t rows, int64_t k, int64_t depth, float *to) {
    for (int64_t first = 0; first < rows; first += TILE) {
        int64_t some = smaller(TILE, rows - first);
        const float *from = at(a, top + first, k);
        if (a.right == 1)
            for (int64_t r = 0; r < some; r++)
                for (int64_t j = 0; j < depth; j++) to[j * some + r] = from[r * a.down + j];
        else
            for (int64_t j = 0; j < depth; j++)
                for (int64_t r = 0; r < some; r++) to[j * some + r] = from[r * a.down + j * a.right];
        to += some * depth;
    }
}

/* Copy rows [k, k + depth) and columns [left, left + columns) of the right operand to [panels][depth][SPAN]. A last
   panel with fewer columns is filled with zeros, so that tiles always multiply whole vectors. */
static void pack_right(Matrix b, int64_t k, int64_t depth, int64_t left, int64_t columns, float *to) {
    for (int64_t first = 0; first < columns; first += SPAN, to += depth * SPAN) {
        int64_t some = smaller(SPAN, columns - first);
        const float *from = at(b, k, left + first);
        if (some < SPAN) memset(to, 0, 4 * depth * SPAN);
        if (b.right == 1 && some == SPAN)
            for (int64_t j = 0; j < depth; j++)
                UNROLL for (int v = 0; v < WIDEST; v++)
                    store(to + j * SPAN + v * LANES, load(from + j * b.down + v * LANES));
        else if (b.right == 1)
            for (int64_t j = 0; j < depth; j++) memcpy(to + j * SPAN, from + j * b.down, 4 * some);
        else
            for (int64_t c = 0; c < some; c++)
                for (int64_t j = 0; j < depth; j++) to[j * SPAN + c] = from[c * b.right + j * b.down];
    }
}

/* Compute one tile of the result from packed operands a [depth][rows] and b [depth][width * LANES].

   more     add to what z holds: an earlier block of the depth has been there.
   z        the first number of the tile in the result, whose rows are `stride` numbers apart.
   columns  columns of the result from the tile's first on; a tile at the right edge stores only these.

   The tile of z is prefetched before the product, so that it has arrived when the sums are added. */
INLINE void tile(int rows, int width, int64_t depth, const float *a, const float *b, int more, float *z, int64_t stride,
                 int64_t columns) {
    vec sums[SUMS] = {};
    UNROLL for (int r = 0; r < rows; r++) __builtin_prefetch(z + r * stride, 1);
    product(rows, width, depth, a, 1, rows, b, width * LANES, sums);
    if (columns >= width * LANES) {
        if (more)
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int v = 0; v < width; v++) sums[r * width + v] += load(z + r * stride + v * LANES);
        store_tile(rows, width, sums, z, stride);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v * LANES < columns; v++) {
            float *place = z + r * stride + v * LANES;
            vec before = more ? load_some(place, columns - v * LANES) : all(0);
            store_some(place, before + sums[r * width + v], columns - v * LANES);
        }
}

/* See matrix.h. Loops from the outside: blocks of columns, blocks of depth, blocks of rows, panels, tiles. */
int multiply(Matrix a, Matrix b, int64_t rows, int64_t depth, int64_t columns, float *z) {
    float *left = aligned_alloc(64, 4 * TALL * DEEP), *right = aligned_alloc(64, 4 * DEEP * BROAD);
    int room = left && right;
    if (room)
        for (int64_t c = 0; c < columns; c += BROAD)
            for (int64_t k = 0; k < depth; k += DEEP) {
                int64_t some = smaller(BROAD, columns - c), deep = smaller(DEEP, depth - k);
                pack_right(b, k, deep, c, some, right);
                for (int64_t r = 0; r < rows; r += TALL) {
                    int64_t tall = smaller(TALL, rows - r);
                    pack_left(a, r, tall, k, deep, left);
                    for (int64_t p = 0; p < some; p += SPAN)
                        for (int64_t t = 0; t < tall; t += TILE) {
                            int tile_rows = (int)smaller(TILE, tall - t);
                            ROWS(tile, tile_rows, WIDEST, deep, left + t * deep, right + p * deep, k > 0,
                                 z + (r + t) * columns + c + p, columns, some - p)
                        }
                }
            }
    free(left), free(right);
    return room;
}
