/* Declarations of the matrix products that several kernels use. Symbols are hidden: the library exports the
   functions that XLA calls, and no others. */
#pragma once

#include "vectors.h"

#pragma GCC visibility push(hidden)

/* A matrix in memory, row-major or transposed. `down` is the distance in numbers to the next row, `right` the
   distance to the next column; one of them is 1. A transposed matrix is described by exchanging the two. */
typedef struct {
    const float *data;
    int64_t down, right;
} Matrix;

/* z [rows, columns] = a b for a [rows, depth], b [depth, columns] and row-major z; see matrix.c. Returns 0 if there
   was no memory for the packed operands, else 1. */
int multiply(Matrix a, Matrix b, int64_t rows, int64_t depth, int64_t columns, float *z);

/* Products of a dense layer with weights w [out, in], without packing; see linear.c.

   inner_products  z [n, out] = x w^T for inputs x [n, in]; in >= LANES, out >= 4.
   products        z [n, in] = d w for cotangents d [n, out], added to z if `more` is set; in >= LANES. */
void inner_products(const float *x, int64_t n, int64_t in, const float *w, int64_t out, float *z);
void products(const float *d, int64_t n, int64_t out, const float *w, int64_t in, int more, float *z);

#pragma GCC visibility pop
