/* The device itself: its number, properties and attributes, and the versions of driver and runtime. */
#include "phantom.h"

#include <stdio.h>
#include <string.h>

#define DEVICE_VERSION 13000  /* CUDA 13.0, driver and runtime */

const unsigned char DEVICE_UUID[16] = {'p', 'h', 'a', 'n', 't', 'o', 'm', ' ', 'G', 'P', 'U', ' ', '0', '0', '0', '0'};

void phantom_properties(struct cudaDeviceProp *q) {
    const struct config *settings = config();
    int generation = settings->major * 10 + settings->minor;
    memset(q, 0, sizeof *q);
    snprintf(q->name, sizeof q->name, "%s", settings->name);
    memcpy(&q->uuid, DEVICE_UUID, sizeof q->uuid);
    q->major = settings->major;
    q->minor = settings->minor;
    q->totalGlobalMem = device_total_bytes();
    q->integrated = settings->unified;
    q->pageableMemoryAccess = settings->unified;
    q->multiProcessorCount = generation >= 90 ? 132 : generation >= 80 ? 108 : 40;
    q->sharedMemPerBlock = 49152;
    q->sharedMemPerMultiprocessor = generation >= 90 ? 233472 : generation >= 80 ? 167936 : 65536;
    q->sharedMemPerBlockOptin = generation >= 90 ? 232448 : generation >= 80 ? 166912 : 65536;
    q->reservedSharedMemPerBlock = 1024;
    q->regsPerBlock = q->regsPerMultiprocessor = 65536;
    q->warpSize = 32;
    q->memPitch = INT32_MAX;
    q->maxThreadsPerBlock = q->maxThreadsDim[0] = q->maxThreadsDim[1] = 1024;
    q->maxThreadsDim[2] = 64;
    q->maxThreadsPerMultiProcessor = generation == 75 ? 1024 : 2048;
    q->maxBlocksPerMultiProcessor = 32;
    q->maxGridSize[0] = INT32_MAX;
    q->maxGridSize[1] = q->maxGridSize[2] = 65535;
    q->totalConstMem = 65536;
    q->textureAlignment = 512;
    q->texturePitchAlignment = 32;
    q->l2CacheSize = (int)(40 * MIB);
    q->memoryBusWidth = 5120;
    q->asyncEngineCount = 3;
    q->pciBusID = 1;
    q->unifiedAddressing = q->canMapHostMemory = q->concurrentKernels = q->streamPrioritiesSupported = 1;
    q->globalL1CacheSupported = q->localL1CacheSupported = q->hostRegisterSupported = q->cooperativeLaunch = 1;
    q->clusterLaunch = generation >= 90;
}

static bool is_device(int device) { return device == 0; }

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    if (!is_device(device))
        return phantom_remember(cudaErrorInvalidDevice);
    phantom_properties(properties);
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (!is_device(device))
        return phantom_remember(cudaErrorInvalidDevice);
    struct cudaDeviceProp q;
    phantom_properties(&q);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = q.maxThreadsPerBlock; break;
        case cudaDevAttrMaxBlockDimX: *value = q.maxThreadsDim[0]; break;
        case cudaDevAttrMaxBlockDimY: *value = q.maxThreadsDim[1]; break;
        case cudaDevAttrMaxBlockDimZ: *value = q.maxThreadsDim[2]; break;
        case cudaDevAttrMaxGridDimX: *value = q.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: *value = q.maxGridSize[1]; break;
        case cudaDevAttrMaxGridDimZ: *value = q.maxGridSize[2]; break;
        case cudaDevAttrWarpSize: *value = q.warpSize; break;
        case cudaDevAttrMultiProcessorCount: *value = q.multiProcessorCount; break;
        case cudaDevAttrComputeCapabilityMajor: *value = q.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = q.minor; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)q.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)q.sharedMemPerBlockOptin; break;
        case cudaDevAttrReservedSharedMemoryPerBlock: *value = (int)q.reservedSharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)q.sharedMemPerMultiprocessor; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = q.regsPerBlock; break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = q.regsPerMultiprocessor; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = q.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = q.maxBlocksPerMultiProcessor; break;
        case cudaDevAttrL2CacheSize: *value = q.l2CacheSize; break;
        case cudaDevAttrTextureAlignment: *value = (int)q.textureAlignment; break;
        case cudaDevAttrIntegrated: *value = q.integrated; break;
        case cudaDevAttrPageableMemoryAccess: *value = q.pageableMemoryAccess; break;
        case cudaDevAttrUnifiedAddressing: *value = q.unifiedAddressing; break;
        case cudaDevAttrCooperativeLaunch: *value = q.cooperativeLaunch; break;
        case cudaDevAttrHostRegisterSupported: *value = q.hostRegisterSupported; break;
        case cudaDevAttrMemoryPoolsSupported: *value = q.memoryPoolsSupported; break;
        case cudaDevAttrConcurrentManagedAccess: *value = q.concurrentManagedAccess; break;
        case cudaDevAttrManagedMemory: *value = q.managedMemory; break;
        default: phantom_missing("cudaDeviceGetAttribute(%d)", (int)attribute);
    }
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

API cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

/* Since CUDA 12 this makes the context. */
API cudaError_t cudaSetDevice(int device) {
    if (!is_device(device))
        return phantom_remember(cudaErrorInvalidDevice);
    ENTER();
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    if (!is_device(device))
        return phantom_remember(cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:01:00.0");
    return cudaSuccess;
}

/* There is one device, so no peers. */
API cudaError_t cudaDeviceCanAccessPeer(int *can, UNUSED int device, UNUSED int peer) {
    *can = 0;
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version) {
    *version = DEVICE_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = DEVICE_VERSION;
    return cudaSuccess;
}

/* No profiler is attached: nothing to start or stop. */
API cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
API cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
