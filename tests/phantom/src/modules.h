/* The kernels that are imitated, because the host reads back what they write and goes on accordingly. */
#ifndef MODULES_H
#define MODULES_H

#include <stddef.h>

struct imitation {
    const void *function;   /* the host function that stands for the kernel */
    enum {
        FILL,   /* torch's fill of a contiguous tensor: zeros, ones, full */
        COUNT,  /* CUB's counter of selected elements: nonzero, masks, unique. Nothing is ever selected */
    } what;
    size_t width;           /* bytes of an element, or of the counter */
    unsigned target;        /* number of the argument that points to the counter */
};

/* Returns what is imitated of the kernel behind the host function, NULL for all others. */
const struct imitation *find_imitation(const void *function);

#endif
