/* Phantom GPU: what the source files share. See ../README.md for what is imitated and what is not. */
#ifndef PHANTOM_H
#define PHANTOM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <library_types.h>

/* Everything is compiled with hidden visibility; API marks what torch, NVML's users and phantom.py may see. */
#define API __attribute__((visibility("default")))
/* Parameters that have no meaning without a device. */
#define UNUSED __attribute__((unused))

#define MIB ((uint64_t)1 << 20)
/* The driver hands out physical memory in such pieces. */
#define GRANULARITY (2 * MIB)

/* ---- report.c: the two ways to stop ---- */

/* Says on stderr what is missing, by name, and aborts: a call must never succeed without being imitated. */
_Noreturn void phantom_missing(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says on stderr in one line what is wrong with the settings or the host, and ends the process with exit code 2. */
_Noreturn void phantom_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Returns a function that calls phantom_missing(name): for entry points that are asked for by name. */
void *phantom_trap(const char *name);

/* ---- config.c: the PHANTOM_* variables, read once ---- */

struct config {
    uint64_t total;         /* bytes of the device */
    uint64_t context;       /* bytes that a process loses to its context */
    int major, minor;       /* compute capability */
    bool unified;           /* the device shares the host's memory (integrated) */
    bool nvml;              /* NVML answers, with processes */
    const char *name;
    const char *device;     /* path of the state shared with other processes, or NULL */
};
const struct config *config(void);

/* ---- faults.c: counters, injected faults, the sticky error ---- */

/* Begins a call that needs the device. Counts it, applies fail_after, makes the context exist.
 * Returns the sticky error, if any: then the call does nothing and returns it. */
cudaError_t phantom_enter(void);
/* Poisons the context as an illegal access does: every later call answers with this error. Returns it. */
cudaError_t phantom_poison(cudaError_t error);
cudaError_t phantom_sticky(void);
/* Keeps the error for cudaGetLastError of this thread and returns it. */
cudaError_t phantom_remember(cudaError_t error);
/* Counts an allocation and says whether the injected fault makes this one fail. */
bool phantom_allocation_fails(void);
/* Counts a kernel, sleeps when slowed. */
void phantom_launched(void);
/* Returns the cuBLAS status to fail with, once, or 0. */
int phantom_gemm_fault(void);
/* Returns what cudaMemGetInfo shall say is free. */
uint64_t phantom_reported_free(uint64_t free_bytes);
/* Whether the context of this process exists. */
bool phantom_touched(void);

#define ENTER()                                        \
    do {                                               \
        cudaError_t entered = phantom_enter();         \
        if (entered != cudaSuccess)                    \
            return phantom_remember(entered);          \
    } while (0)

/* ---- errors.c ---- */

const char *phantom_error_name(cudaError_t error);
const char *phantom_error_text(cudaError_t error);
API CUresult cuGetErrorString(CUresult error, const char **text);

/* ---- device.c: the bytes of the device, by process ---- */

#define MAX_PROCESSES 64
struct process {
    int32_t pid;
    uint64_t born;      /* start time in clock ticks since boot: tells a process from a later one with its number */
    uint64_t used;      /* bytes allocated */
    uint64_t context;   /* bytes of the context */
};

/* Takes bytes of the device for this process; false when they are not there. */
bool device_charge(uint64_t bytes);
void device_return(uint64_t bytes);
/* Takes the bytes of the context; false when they are not there. */
bool device_create_context(void);
uint64_t device_free_bytes(void);
uint64_t device_total_bytes(void);
uint64_t device_used_bytes(void);
/* Sets the capacity; false while this process has memory, or when the context would not fit. */
bool device_set_total(uint64_t bytes);
/* Bytes that another, imagined process holds; false when they are not there. */
bool device_take(uint64_t bytes);
void device_give_back(void);
/* Copies the live processes; returns how many there are. */
unsigned device_processes(struct process *out);

/* ---- space.c: address space and the bytes in it ---- */

bool space_holds(const void *address);
/* Finds free address space, not yet accessible. The size is rounded up to whole pages. Returns 0 when there is none. */
uintptr_t space_reserve(size_t size, size_t alignment);
/* Gives address space back, with what is mapped in it. Returns its size, or 0 when nothing starts there. */
size_t space_release(uintptr_t start);
/* Puts memory (zeros) behind reserved address space; `owner` is kept for space_unmap. */
bool space_map(uintptr_t start, size_t size, void *owner, bool accessible);
/* Makes all mapped pieces in the range accessible; false when there is a hole. */
bool space_set_accessible(uintptr_t start, size_t size);
/* Takes the memory away behind the piece that starts there and has this size; false when there is none. */
bool space_unmap(uintptr_t start, size_t size, void **owner);
/* Whether every byte of the range can be accessed. */
bool space_is_live(const void *address, size_t size);
/* Sets device bytes; zeros give whole pages back. */
void space_fill(void *address, const void *pattern, size_t width, size_t count);
/* Copies, leaving pages untouched that are zero on both sides. */
void space_copy(void *to, const void *from, size_t size);

/* ---- clock.c: a virtual clock that only the device's work moves ---- */

enum rate { RATE_HALF, RATE_TF32, RATE_FLOAT, RATE_DOUBLE };
uint64_t clock_now_ns(void);
void clock_tick(uint64_t ns);
void clock_kernel(uint64_t threads);
void clock_copy(uint64_t bytes, bool crosses_bus);
/* `operations`: multiplications and additions. */
void clock_matmul(double operations, enum rate rate);


/* ---- runtime.c ---- */

extern const unsigned char DEVICE_UUID[16];
void phantom_properties(struct cudaDeviceProp *properties);


#endif
