/* Driver calls: virtual memory (torch's expandable segments), the context, and the entry points torch asks for by name.
 *
 * A handle of cuMemCreate is charged to the device until it is released and no longer mapped, as in CUDA. Its bytes
 * belong to the place where it is mapped: mapping a handle a second time, which would have to show the same bytes
 * twice, is not imitated. */
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct physical {
    size_t size;
    bool mapped, released;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The driver gives the sticky error as the runtime does; the numbers are the same. */
#define ENTER_DRIVER()                               \
    do {                                             \
        cudaError_t entered = phantom_enter();       \
        if (entered != cudaSuccess)                  \
            return (CUresult)entered;                \
    } while (0)

static bool is_whole(size_t size) { return size > 0 && size % GRANULARITY == 0; }

static void drop(struct physical *handle) {
    if (handle->mapped || !handle->released)
        return;
    device_return(handle->size);
    free(handle);
}

static CUresult address_reserve(CUdeviceptr *pointer, size_t size, size_t alignment, UNUSED CUdeviceptr wanted,
                                UNUSED unsigned long long flags) {
    ENTER_DRIVER();
    if (!is_whole(size))
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = space_reserve(size, alignment > GRANULARITY ? alignment : GRANULARITY);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult address_free(CUdeviceptr pointer, UNUSED size_t size) {
    ENTER_DRIVER();
    return space_release(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, UNUSED const CUmemAllocationProp *properties,
                       UNUSED unsigned long long flags) {
    ENTER_DRIVER();
    if (!is_whole(size))
        return CUDA_ERROR_INVALID_VALUE;
    if (phantom_allocation_fails() || !device_charge(size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *made = calloc(1, sizeof *made);
    if (!made)
        phantom_refuse("the host has no memory for a device handle");
    made->size = size;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    ENTER_DRIVER();
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    pthread_mutex_lock(&lock);
    physical->released = true;
    drop(physical);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    UNUSED unsigned long long flags) {
    ENTER_DRIVER();
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (offset != 0 || size != physical->size || physical->mapped)
        phantom_missing("cuMemMap of a part of a handle, or of one that is mapped already,");
    if (space_map(pointer, size, physical, false))
        physical->mapped = true;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult unmap(CUdeviceptr pointer, size_t size) {
    ENTER_DRIVER();
    void *owner = NULL;
    pthread_mutex_lock(&lock);
    bool found = space_unmap(pointer, size, &owner);
    if (found && owner) {
        ((struct physical *)owner)->mapped = false;
        drop(owner);
    }
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_access(CUdeviceptr pointer, size_t size, UNUSED const CUmemAccessDesc *access,
                           UNUSED size_t count) {
    ENTER_DRIVER();
    return space_set_accessible(pointer, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult granularity(size_t *bytes, UNUSED const CUmemAllocationProp *properties,
                            UNUSED CUmemAllocationGranularity_flags option) {
    *bytes = GRANULARITY;
    return CUDA_SUCCESS;
}

/* ---- the context ---- */

#define CONTEXT ((CUcontext)(uintptr_t)1)  /* only compared with NULL */

static CUresult init(UNUSED unsigned flags) { return CUDA_SUCCESS; }

API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = phantom_touched() ? CONTEXT : NULL;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(UNUSED CUcontext context) {
    ENTER_DRIVER();
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(UNUSED CUdevice device, unsigned *flags, int *active) {
    if (flags)
        *flags = 0;
    if (active)
        *active = phantom_touched();
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, UNUSED CUdevice device) {
    ENTER_DRIVER();
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult device_count(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, UNUSED CUdevice device) {
    memcpy(uuid, DEVICE_UUID, sizeof *uuid);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, UNUSED CUdevice device) {
    switch ((int)attribute) {
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = 0; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = config()->major; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = config()->minor; break;
        default: phantom_missing("cuDeviceGetAttribute(%d)", (int)attribute);
    }
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = phantom_error_name((cudaError_t)error);
    return CUDA_SUCCESS;
}

/* ---- entry points by name ---- */

static const struct {
    const char *name;
    void *function;
} ENTRIES[] = {
    {"cuInit", init},
    {"cuGetErrorString", cuGetErrorString},
    {"cuGetErrorName", cuGetErrorName},
    {"cuCtxGetCurrent", cuCtxGetCurrent},
    {"cuCtxSetCurrent", cuCtxSetCurrent},
    {"cuDeviceGet", cuDeviceGet},
    {"cuDeviceGetCount", device_count},
    {"cuDeviceGetUuid", device_uuid},
    {"cuDeviceGetAttribute", cuDeviceGetAttribute},
    {"cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState},
    {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain},
    {"cuMemAddressReserve", address_reserve},
    {"cuMemAddressFree", address_free},
    {"cuMemCreate", create},
    {"cuMemRelease", release},
    {"cuMemMap", map},
    {"cuMemUnmap", unmap},
    {"cuMemSetAccess", set_access},
    {"cuMemGetAllocationGranularity", granularity},
};

/* Torch asks for many entry points at once and calls few: what is not imitated is handed out as a trap. */
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, UNUSED unsigned version,
                                                 UNUSED unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    *function = NULL;
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++)
        if (!strcmp(ENTRIES[i].name, name))
            *function = ENTRIES[i].function;
    if (!*function)
        *function = phantom_trap(name);
    if (status)
        *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
