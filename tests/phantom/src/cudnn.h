/* What the two files about cuDNN share. */
#ifndef PHANTOM_CUDNN_H
#define PHANTOM_CUDNN_H

#include "phantom.h"

typedef int status;  /* cudnnStatus_t */
enum {
    CUDNN_SUCCESS = 0,
    CUDNN_NOT_INITIALIZED = 1001,
    CUDNN_BAD_PARAM = 2000,
    CUDNN_HOST_ALLOCATION_FAILED = 4003,
    CUDNN_EXECUTION_FAILED = 5000,
};
enum { CUDNN_DOUBLE = 1, CUDNN_HALF = 2, CUDNN_BFLOAT16 = 9 };  /* cudnnDataType_t */

#define MAX_EXTENTS 8
/* A tensor, filter or activation descriptor. */
struct tensor {
    int type, format, dimensions;
    int extents[MAX_EXTENTS];
    int64_t elements;
};
status cudnn_set_tensor(struct tensor *tensor, int type, int count, const int *extents);

/* Counts and times one piece of work. */
status cudnn_run(double operations, enum rate rate);
enum rate cudnn_rate(int type);
size_t cudnn_width(int type);

#endif
