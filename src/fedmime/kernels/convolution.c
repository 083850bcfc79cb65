/* Convolution of stride 1 and the gradient of its kernel.

   Images are [batch, height, width, channels], kernels [height, width, in, out]; `out` is a multiple of LANES. For
   one row of the kernel, the numbers that an output pixel depends on are consecutive in the image: kernel width
   times channels. The next pixel's begin `channels` numbers later. So a row of output pixels is a matrix product
   whose left operand is the image itself, with overlapping rows; no patches are copied (no im2col). Output channels
   are the vector axis.

   XLA:CPU uses a general routine made for large images. For the 28 by 28 images of a mini-batch these loops are
   faster: a round of the CNN takes about three quarters of the time. One example at a time is processed, so that
   its image stays in the cache for all kernel rows. */
#include <stdlib.h>

#include "vectors.h"

/* The shape of one image. */
typedef struct {
    int64_t height, width, channels;
} Shape;

/* Call F(width, ...) for blocks of 4, 2 or 1 vectors of output channels, the widest first. `o` is the first channel
   of the block; arguments may use it. The width is a constant in every call, as tiles require. */
#define CHANNELS(F, out, ...)                                            \
    for (int64_t o = 0; o < (out);) {                                    \
        int64_t vectors = ((out) - o) / LANES;                           \
        if (vectors >= 4 && WIDEST >= 4) {                               \
            F(4, __VA_ARGS__), o += 4 * LANES;                           \
        } else if (vectors >= 2) {                                       \
            F(2, __VA_ARGS__), o += 2 * LANES;                           \
        } else {                                                         \
            F(1, __VA_ARGS__), o += LANES;                               \
        }                                                                \
    }

/* Copy a block of channels of `rows` rows, which are `out` numbers apart, to consecutive memory. Rows at such a
   distance, often a power of two, would fall into the same sets of the first-level cache and evict each other. */
INLINE void pack_block(int width, const float *from, int64_t rows, int64_t out, float *to) {
    for (int64_t r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < width; v++) store(to + (r * width + v) * LANES, load(from + r * out + v * LANES));
}

/* Copy an image and add `left` columns of zeros on either side. Rows of zeros above and below are not stored: the
   callers skip the kernel rows that would be multiplied with them. */
static void pad(const float *image, Shape s, int64_t left, float *padded) {
    int64_t edge = left * s.channels, inner = s.width * s.channels;
    for (int64_t y = 0; y < s.height; y++, padded += inner + 2 * edge) {
        memset(padded, 0, 4 * edge);
        memcpy(padded + edge, image + y * inner, 4 * inner);
        memset(padded + edge + inner, 0, 4 * edge);
    }
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* One tile of the convolution: `rows` neighbouring pixels of an output row and `width` vectors of channels.

   image   the first number of the image that the first pixel depends on; image rows are image_row numbers apart.
   kernel  packed, [kernel_height][depth][width * LANES] with depth = kernel width * channels.
   to      the first output pixel; pixels are `out` numbers apart. */
INLINE void pixels(int rows, int width, const float *image, int64_t image_row, int64_t channels, const float *kernel,
                   int64_t kernel_height, int64_t depth, int64_t out, float *to) {
    vec sums[SUMS] = {};
    for (int64_t ky = 0; ky < kernel_height; ky++)
        product(rows, width, depth, image + ky * image_row, channels, 1, kernel + ky * depth * width * LANES,
                width * LANES, sums);
    store_tile(rows, width, sums, to, out);
}

/* Convolve one padded image of shape `in` with a block of output channels; the result has shape z. At the upper and
   lower edge only the `count` kernel rows that lie within the image are multiplied, from row `first` on. */
INLINE void convolve_block(int width, const float *image, Shape in, int64_t top, const float *kernel,
                           int64_t kernel_height, int64_t kernel_width, Shape z, float *to) {
    int64_t depth = kernel_width * in.channels, row = in.width * in.channels;
    for (int64_t y = 0; y < z.height; y++) {
        int64_t first = larger(0, top - y), count = smaller(kernel_height, in.height + top - y) - first;
        const float *line = image + (y - top + first) * row, *part = kernel + first * depth * width * LANES;
        for (int64_t x = 0; x < z.width;) {
            int rows = next_rows(z.width - x, width);
            const float *from = line + x * in.channels;
            float *pixel = to + (y * z.width + x) * z.channels;
            ROWS(pixels, rows, width, from, row, in.channels, part, count, depth, z.channels, pixel)
            x += rows;
        }
    }
}

/* XLA target "convolve". Arguments: images x [batch, height, width, in], kernel w [kh, kw, in, out]. Result: images
   [batch, height', width', out]. The padding is not passed but follows from the shapes: whatever the result is
   larger than without padding is zeros, half of them on each side. */
XLA_FFI_Error *fedmime_convolve(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const int64_t *xs = argument(frame, 0)->dims, *ws = argument(frame, 1)->dims, *zs = result(frame, 0)->dims;
    const float *x = argument(frame, 0)->data, *w = argument(frame, 1)->data;
    float *z = result(frame, 0)->data;
    int64_t top = (zs[1] + ws[0] - 1 - xs[1]) / 2, left = (zs[2] + ws[1] - 1 - xs[2]) / 2, out = zs[3];
    Shape image = {xs[1], xs[2], xs[3]}, padded = {xs[1], xs[2] + 2 * left, xs[3]}, to = {zs[1], zs[2], out};
    int64_t rows = ws[0] * ws[1] * ws[2];
    float *room = malloc(4 * (rows * out + (left ? padded.height * padded.width * padded.channels : 0)));
    if (!room) return no_memory(frame);
    float *wider = room + rows * out;
    CHANNELS(pack_block, out, w + o, rows, out, room + o * rows)
    for (int64_t n = 0; n < xs[0]; n++) {
        const float *from = x + n * image.height * image.width * image.channels;
        float *into = z + n * to.height * to.width * out;
        if (left) pad(from, image, left, wider), from = wider;
        CHANNELS(convolve_block, out, from, padded, top, room + o * rows, ws[0], ws[1], to, into + o)
    }
    free(room);
    return NULL;
}

/* One tile of the kernel gradient: `rows` neighbouring entries of one kernel row, each of them an input channel at a
   position, and `width` vectors of output channels. The sum runs over pixel_rows by pixel_columns output pixels and is
   added to what `to` holds.

   image  the number that the tile's first entry is multiplied with at the first pixel.
   d      cotangents of the output, packed, [pixel_rows][pixel_columns][width * LANES]. */
INLINE void taps(int rows, int width, const float *image, int64_t image_row, int64_t channels, const float *d,
                 int64_t pixel_rows, int64_t pixel_columns, int64_t out, float *to) {
    vec sums[SUMS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < width; v++) sums[r * width + v] = load(to + r * out + v * LANES);
    for (int64_t y = 0; y < pixel_rows; y++)
        product(rows, width, pixel_columns, image + y * image_row, 1, channels, d + y * pixel_columns * width * LANES,
                width * LANES, sums);
    store_tile(rows, width, sums, to, out);
}

/* Add the kernel gradient of one padded image to `to`, for a block of output channels. Output rows are processed in
   groups of at_once, whose cotangents take at most about 24 kB: they stay in the first-level cache while all
   entries of the kernel are computed. */
INLINE void gradient_block(int width, const float *image, Shape in, int64_t top, const float *d, Shape z,
                           int64_t kernel_height, int64_t kernel_width, float *to) {
    int64_t depth = kernel_width * in.channels, row = in.width * in.channels;
    int64_t at_once = 1 + (24 << 10) / (4 * z.width * width * LANES);
    for (int64_t block = 0; block < z.height; block += at_once)
        for (int64_t ky = 0; ky < kernel_height; ky++) {
            int64_t y = larger(block, top - ky),
                    end = smaller(smaller(block + at_once, z.height), in.height + top - ky);
            for (int64_t k = 0; k < depth;) {
                int rows = next_rows(depth - k, width);
                const float *from = image + (y - top + ky) * row + k, *cotangent = d + y * z.width * width * LANES;
                float *tap = to + (ky * depth + k) * z.channels;
                ROWS(taps, rows, width, from, row, in.channels, cotangent, end - y, z.width, z.channels, tap)
                k += rows;
            }
        }
}

/* XLA target "kernel_gradient". Arguments: images x [batch, height, width, in], cotangents d [batch, height',
   width', out] of the output. Result: the cotangent of the kernel [kh, kw, in, out], summed over the batch, or, if
   the result has five axes, of every example separately: [batch, kh, kw, in, out]. The padding follows from the
   shapes. */
XLA_FFI_Error *fedmime_kernel_gradient(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const int64_t *xs = argument(frame, 0)->dims, *ds = argument(frame, 1)->dims, *gs = result(frame, 0)->dims;
    const float *x = argument(frame, 0)->data, *d = argument(frame, 1)->data;
    float *g = result(frame, 0)->data;
    int each = result(frame, 0)->rank == 5;
    gs += each;
    int64_t size = gs[0] * gs[1] * gs[2] * gs[3], out = ds[3];
    int64_t top = (ds[1] + gs[0] - 1 - xs[1]) / 2, left = (ds[2] + gs[1] - 1 - xs[2]) / 2;
    Shape image = {xs[1], xs[2], xs[3]}, padded = {xs[1], xs[2] + 2 * left, xs[3]}, z = {ds[1], ds[2], out};
    int64_t pixels = z.height * z.width;
    float *room = malloc(4 * (pixels * out + (left ? padded.height * padded.width * padded.channels : 0)));
    if (!room) return no_memory(frame);
    float *wider = room + pixels * out;
    memset(g, 0, 4 * size * (each ? xs[0] : 1));
    for (int64_t n = 0; n < xs[0]; n++, g += each ? size : 0) {
        const float *from = x + n * image.height * image.width * image.channels;
        if (left) pad(from, image, left, wider), from = wider;
        CHANNELS(pack_block, out, d + n * pixels * out + o, pixels, out, room + o * pixels)
        CHANNELS(gradient_block, out, from, padded, top, room + o * pixels, z, gs[0], gs[1], g + o)
    }
    free(room);
    return NULL;
}
