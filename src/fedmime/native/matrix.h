/* A product of matrices of any size. */
#pragma once

#include "vectors.h"

/* How far the next row and the next column are away; one of them is 1. */
typedef struct {
    const float *data;
    int64_t down, right;
} Matrix;

/* z [rows, columns] = a b, where a has `depth` columns and b as many rows; 0 without memory. */
int multiply(Matrix a, Matrix b, int64_t rows, int64_t depth, int64_t columns, float *z);
