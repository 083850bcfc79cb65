/* A product of matrices of any size. */
#pragma once

#include "vectors.h"

#pragma GCC visibility push(hidden)

/* How far the next row and the next column are away; one of them is 1. */
typedef struct {
    const float *data;
    int64_t down, right;
} Matrix;

/* z [rows, columns] = a b, where a has `depth` columns and b as many rows; 0 without memory. */
int multiply(Matrix a, Matrix b, int64_t rows, int64_t depth, int64_t columns, float *z);

/* Products of a dense layer with weights w [out, in] on some rows; see linear.c and panels.c. `in` is at least a vector wide;
   for inner products `out` may be less, but not below 4. */
void inner_products(const float *x, int64_t n, int64_t in, const float *w, int64_t out, float *z);
void products(const float *d, int64_t n, int64_t out, const float *w, int64_t in, int more, float *z);
void panel_products(const float *x, int64_t n, int64_t in, const float *panels, int64_t out, float *z);

#pragma GCC visibility pop
