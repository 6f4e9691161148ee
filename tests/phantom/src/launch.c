/* Kernel launches: checked, counted and timed, but not run.
 *
 * The exceptions are few: what the host reads back and goes on by. Torch's fill (zeros, ones, full) is done, because
 * GradScaler's "found an infinity" and scale are made with it; a large fill with anything but zeros is left out, as it
 * would commit the host's memory for a tensor that nobody looks at. Counters of selected elements become zero. */
#include "phantom.h"
#include "modules.h"

#include <string.h>

#define LARGEST_FILL MIB

/* What <<<...>>> leaves for the stub that makes the launch. */
struct configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};
static __thread struct configuration pushed[16];
static __thread unsigned depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    if (depth == sizeof pushed / sizeof *pushed)
        phantom_missing("a kernel launch nested %u deep", depth + 1);
    pushed[depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!depth)
        return phantom_remember(cudaErrorMissingConfiguration);
    const struct configuration *found = &pushed[--depth];
    *grid = found->grid;
    *block = found->block;
    *shared = found->shared;
    *(void **)stream = found->stream;
    return cudaSuccess;
}

static bool is_possible(dim3 grid, dim3 block) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535 &&
           threads >= 1 && threads <= 1024 && block.z <= 64;
}

/* Sets device bytes for a kernel, with what becomes of a kernel that writes where nothing is. */
static void write_bytes(void *target, const void *pattern, size_t width, size_t count) {
    if (!space_holds(target))
        return;
    if (space_is_live(target, width * count))
        space_fill(target, pattern, width, count);
    else
        phantom_poison(cudaErrorIllegalAddress);
}

static void imitate(const struct imitation *kernel, void **arguments) {
    static const char ZEROS[16];
    void *target;
    if (kernel->what == COUNT) {
        memcpy(&target, arguments[kernel->target], sizeof target);
        write_bytes(target, ZEROS, kernel->width, 1);
        return;
    }
    int count;  /* the arguments: element count, functor (which is only the value), array of one pointer */
    memcpy(&count, arguments[0], sizeof count);
    memcpy(&target, arguments[2], sizeof target);
    bool zeros = memcmp(arguments[1], ZEROS, kernel->width) == 0;
    if (count > 0 && (zeros || (size_t)count * kernel->width <= LARGEST_FILL))
        write_bytes(target, arguments[1], kernel->width, (size_t)count);
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **arguments) {
    ENTER();
    if (!is_possible(grid, block))
        return phantom_remember(cudaErrorInvalidConfiguration);
    phantom_launched();
    clock_kernel((uint64_t)grid.x * grid.y * grid.z * block.x * block.y * block.z);
    const struct imitation *kernel = find_imitation(function);
    if (kernel)
        imitate(kernel, arguments);
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, UNUSED size_t shared,
                                 UNUSED cudaStream_t stream) {
    return launch(function, grid, block, arguments);
}

API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                            UNUSED size_t shared, UNUSED cudaStream_t stream) {
    return launch(function, grid, block, arguments);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launch_config, const void *function, void **arguments) {
    return launch(function, launch_config->gridDim, launch_config->blockDim, arguments);
}

/* A kernel handle is the host function. */
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)(uintptr_t)function;
    return cudaSuccess;
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, UNUSED size_t shared,
                                   UNUSED cudaStream_t stream) {
    return launch((const void *)kernel, grid, block, arguments);
}

/* ---- what is asked about kernels before a launch ---- */

/* Attributes (more shared memory, mostly) change nothing that is imitated. */
API cudaError_t cudaFuncSetAttribute(UNUSED const void *function, UNUSED enum cudaFuncAttribute attribute,
                                     UNUSED int value) {
    ENTER();
    return cudaSuccess;
}

/* One answer for every kernel: it may use a whole block and 32 registers. */
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, UNUSED const void *function) {
    ENTER();
    struct cudaDeviceProp device;
    phantom_properties(&device);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = device.maxThreadsPerBlock;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = device.major * 10 + device.minor;
    attributes->maxDynamicSharedSizeBytes = (int)device.sharedMemPerBlockOptin;
    return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, UNUSED const void *function,
                                                                       int block_size, UNUSED size_t shared,
                                                                       UNUSED unsigned flags) {
    ENTER();
    struct cudaDeviceProp device;
    phantom_properties(&device);
    if (block_size < 1)
        return phantom_remember(cudaErrorInvalidValue);
    int fitting = device.maxThreadsPerMultiProcessor / block_size;
    *blocks = fitting < device.maxBlocksPerMultiProcessor ? fitting : device.maxBlocksPerMultiProcessor;
    return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                              size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared, 0);
}
