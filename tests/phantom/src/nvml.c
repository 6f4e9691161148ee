/* NVML with PHANTOM_NVML=per_process: the device, its memory, and which process holds how much.
 *
 * When it is absent, libnvidia-ml.so.1 cannot be loaded at all, as on a machine without the driver (see build.py). */
#include "phantom.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {  /* nvmlReturn_t */
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute_instance;  /* of MIG; all ones: not applicable */
};
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
#define DEVICE ((void *)(uintptr_t)1)

/* The library is next to this one, in nvml/. Loaded once, it is found by its soname wherever it is asked for. */
__attribute__((constructor)) static void load_nvml(void) {
    const char *wanted = getenv("PHANTOM_NVML");
    Dl_info here;
    if (!wanted || strcmp(wanted, "per_process") != 0 || !dladdr((void *)load_nvml, &here))
        return;
    char path[4096];
    const char *slash = strrchr(here.dli_fname, '/');
    int folder = slash ? (int)(slash - here.dli_fname) : 0;
    snprintf(path, sizeof path, "%.*s/nvml/libnvidia-ml.so.1", folder, here.dli_fname);
    if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL))
        phantom_refuse("NVML is wanted, but its library cannot be loaded: %s", dlerror());
}

API int nvmlInit_v2(void) { return config()->nvml ? SUCCESS : DRIVER_NOT_LOADED; }
API int nvmlInitWithFlags(UNUSED unsigned flags) { return nvmlInit_v2(); }
API int nvmlShutdown(void) { return SUCCESS; }

API const char *nvmlErrorString(int error) {
    switch (error) {
        case SUCCESS: return "Success";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        default: return "Unknown Error";
    }
}

API int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.00");
    return SUCCESS;
}
API int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    snprintf(text, size, "13.580.00");
    return SUCCESS;
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

/* ---- one device ---- */

static void uuid_text(char *text, size_t size) {
    char digits[33];
    for (int i = 0; i < 16; i++)
        snprintf(digits + 2 * i, 3, "%02x", DEVICE_UUID[i]);
    snprintf(text, size, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", digits, digits + 8, digits + 12, digits + 16, digits + 20);
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return SUCCESS;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = DEVICE;
    return index == 0 ? SUCCESS : INVALID_ARGUMENT;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char own[64];
    uuid_text(own, sizeof own);
    *device = DEVICE;
    return strcmp(own, uuid) == 0 ? SUCCESS : NOT_FOUND;
}
/* torch writes the domain with 8 digits, the runtime with 4. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    unsigned domain, number, slot, function;
    *device = DEVICE;
    bool own = sscanf(bus, "%x:%x:%x.%x", &domain, &number, &slot, &function) == 4 && domain == 0 && number == 1 &&
               slot == 0 && function == 0;
    return own ? SUCCESS : NOT_FOUND;
}
API int nvmlDeviceGetUUID(UNUSED void *device, char *text, unsigned size) {
    uuid_text(text, size);
    return SUCCESS;
}
API int nvmlDeviceGetName(UNUSED void *device, char *text, unsigned size) {
    snprintf(text, size, "%s", config()->name);
    return SUCCESS;
}
API int nvmlDeviceGetMemoryInfo(UNUSED void *device, struct memory *memory) {
    memory->total = device_total_bytes();
    memory->free = device_free_bytes();
    memory->used = memory->total - memory->free;
    return SUCCESS;
}
API int nvmlDeviceGetMemoryInfo_v2(UNUSED void *device, struct memory_v2 *memory) {
    memory->total = device_total_bytes();
    memory->free = device_free_bytes();
    memory->reserved = 0;
    memory->used = memory->total - memory->free;
    return SUCCESS;
}

/* ---- processes ---- */

API int nvmlDeviceGetComputeRunningProcesses(UNUSED void *device, unsigned *count, struct process_v1 *out) {
    struct process found[MAX_PROCESSES];
    unsigned room = *count;
    *count = device_processes(found);
    if (*count > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        out[i] = (struct process_v1){(unsigned)found[i].pid, found[i].used + found[i].context};
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v2(UNUSED void *device, unsigned *count, struct process_v2 *out) {
    struct process found[MAX_PROCESSES];
    unsigned room = *count;
    *count = device_processes(found);
    if (*count > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        out[i] = (struct process_v2){(unsigned)found[i].pid, found[i].used + found[i].context, ~0U, ~0U};
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_v2 *out) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, out);
}

/* Torch looks all of these up before it uses any. */
#define TRAP(name) \
    API int name(void) { phantom_missing(#name); }
TRAP(nvmlDeviceGetNvLinkRemoteDeviceType)
TRAP(nvmlDeviceGetNvLinkRemotePciInfo_v2)
TRAP(nvmlDeviceGetGpuFabricInfoV)
TRAP(nvmlDeviceGetP2PStatus)
