/* Device memory, pinned host memory, copies and memsets of the CUDA runtime. */
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- device memory ---- */

API cudaError_t cudaMalloc(void **pointer, size_t size) {
    ENTER();
    *pointer = NULL;
    if (size == 0)
        return cudaSuccess;
    /* Small pieces share pages of the driver's; the phantom gives each its own host page. */
    size_t unit = size < MIB ? 4096 : GRANULARITY;
    size_t whole = (size + unit - 1) / unit * unit;
    if (whole < size || phantom_allocation_fails() || !device_charge(whole))
        return phantom_remember(cudaErrorMemoryAllocation);
    uintptr_t start = space_reserve(whole, unit);
    if (!start || !space_map(start, whole, NULL, true)) {
        device_return(whole);
        return phantom_remember(cudaErrorMemoryAllocation);
    }
    *pointer = (void *)start;
    return cudaSuccess;
}

API cudaError_t cudaFree(void *pointer) {
    ENTER();
    if (!pointer)
        return cudaSuccess;  /* the idiom that only makes the context exist */
    size_t size = space_release((uintptr_t)pointer);
    if (!size)
        return phantom_remember(cudaErrorInvalidValue);
    device_return(size);
    return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER();
    *free_bytes = phantom_reported_free(device_free_bytes());
    *total_bytes = device_total_bytes();
    return cudaSuccess;
}

/* ---- pinned host memory: ordinary memory, remembered so that torch can tell that it is pinned ---- */

struct pinned {
    char *start;
    size_t size;
    bool registered;  /* the caller's own memory, pinned later */
};
static struct pinned *pins;
static size_t pin_count, pin_room;
static pthread_mutex_t pin_lock = PTHREAD_MUTEX_INITIALIZER;

static void pin(void *start, size_t size, bool registered) {
    pthread_mutex_lock(&pin_lock);
    if (pin_count == pin_room) {
        pin_room = pin_room ? 2 * pin_room : 64;
        pins = realloc(pins, pin_room * sizeof *pins);
        if (!pins)
            phantom_refuse("the host has no memory for the table of pinned memory");
    }
    pins[pin_count++] = (struct pinned){start, size, registered};
    pthread_mutex_unlock(&pin_lock);
}

static bool unpin(const void *start, bool registered) {
    bool found = false;
    pthread_mutex_lock(&pin_lock);
    for (size_t i = 0; i < pin_count && !found; i++)
        if (pins[i].start == (const char *)start && pins[i].registered == registered) {
            pins[i] = pins[--pin_count];
            found = true;
        }
    pthread_mutex_unlock(&pin_lock);
    return found;
}

static bool is_pinned(const void *address) {
    bool found = false;
    pthread_mutex_lock(&pin_lock);
    for (size_t i = 0; i < pin_count && !found; i++)
        found = (const char *)address >= pins[i].start && (const char *)address < pins[i].start + pins[i].size;
    pthread_mutex_unlock(&pin_lock);
    return found;
}

API cudaError_t cudaHostAlloc(void **pointer, size_t size, UNUSED unsigned flags) {
    ENTER();
    *pointer = NULL;
    if (size == 0)
        return cudaSuccess;
    if (posix_memalign(pointer, 4096, size))
        return phantom_remember(cudaErrorMemoryAllocation);
    pin(*pointer, size, false);
    return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *pointer) {
    ENTER();
    if (!pointer)
        return cudaSuccess;
    if (!unpin(pointer, false))
        return phantom_remember(cudaErrorInvalidValue);
    free(pointer);
    return cudaSuccess;
}

API cudaError_t cudaHostRegister(void *pointer, size_t size, UNUSED unsigned flags) {
    ENTER();
    if (!pointer || !size)
        return phantom_remember(cudaErrorInvalidValue);
    if (is_pinned(pointer))
        return phantom_remember(cudaErrorHostMemoryAlreadyRegistered);
    pin(pointer, size, true);
    return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void *pointer) {
    ENTER();
    return unpin(pointer, true) ? cudaSuccess : phantom_remember(cudaErrorHostMemoryNotRegistered);
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    ENTER();
    memset(attributes, 0, sizeof *attributes);
    attributes->device = -2;  /* CUDA's answer for memory that it does not know */
    attributes->hostPointer = (void *)pointer;
    if (space_holds(pointer)) {
        if (!space_is_live(pointer, 1))
            return phantom_remember(cudaErrorInvalidValue);
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = 0;
        attributes->devicePointer = (void *)pointer;
        attributes->hostPointer = NULL;
    } else if (is_pinned(pointer)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->device = 0;
        attributes->devicePointer = (void *)pointer;
    }
    return cudaSuccess;
}

/* ---- copies and memsets: done at once, in the calling thread ---- */

static bool says_device(enum cudaMemcpyKind kind, bool target) {
    return kind == cudaMemcpyDeviceToDevice || kind == (target ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
}

static cudaError_t copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    bool to_device = space_holds(to), from_device = space_holds(from);
    if (size == 0)
        return cudaSuccess;
    if (kind != cudaMemcpyDefault && (says_device(kind, true) != to_device || says_device(kind, false) != from_device))
        return cudaErrorInvalidValue;
    if ((to_device && !space_is_live(to, size)) || (from_device && !space_is_live(from, size)))
        return phantom_poison(cudaErrorIllegalAddress);
    space_copy(to, from, size);
    clock_copy(size, to_device != from_device);
    return cudaSuccess;
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    ENTER();
    return phantom_remember(copy(to, from, size, kind));
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                                UNUSED cudaStream_t stream) {
    ENTER();
    return phantom_remember(copy(to, from, size, kind));
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                    UNUSED cudaStream_t stream) {
    ENTER();
    if (to_device != 0 || from_device != 0)
        return phantom_remember(cudaErrorInvalidDevice);
    return phantom_remember(copy(to, from, size, cudaMemcpyDeviceToDevice));
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind kind, UNUSED cudaStream_t stream) {
    ENTER();
    cudaError_t result = cudaSuccess;
    for (size_t row = 0; row < height && result == cudaSuccess; row++)
        result = copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
    return phantom_remember(result);
}

static cudaError_t set(void *address, int value, size_t size) {
    ENTER();
    if (size == 0)
        return cudaSuccess;
    if (!space_holds(address))
        return phantom_remember(cudaErrorInvalidValue);
    if (!space_is_live(address, size))
        return phantom_remember(phantom_poison(cudaErrorIllegalAddress));
    unsigned char byte = (unsigned char)value;
    space_fill(address, &byte, 1, size);
    clock_copy(size, false);
    return cudaSuccess;
}

API cudaError_t cudaMemset(void *address, int value, size_t size) { return set(address, value, size); }
API cudaError_t cudaMemsetAsync(void *address, int value, size_t size, UNUSED cudaStream_t stream) {
    return set(address, value, size);
}
