/* Counters, injected faults, and the sticky error. Set by PHANTOM_FAULT or from phantom.py by the functions below. */
#include "phantom.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic uint64_t calls, launches;
static _Atomic uint64_t allocations_until_failure;  /* 0: none is to fail */
static _Atomic uint64_t last_good_call = UINT64_MAX;
static _Atomic int code_after;
static _Atomic int64_t misreported = -1;
static _Atomic unsigned slow_us;
static _Atomic int gemm_status;
static _Atomic int sticky;
static _Atomic bool touched, forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread cudaError_t last;

/* ---- PHANTOM_FAULT ---- */

static void set_fault(const char *name, uint64_t value) {
    if (!strcmp(name, "fail_allocation"))
        allocations_until_failure = value;
    else if (!strcmp(name, "fail_after")) {
        last_good_call = value;
        code_after = cudaErrorIllegalAddress;
    } else if (!strcmp(name, "misreport_free_mib"))
        misreported = (int64_t)(value * MIB);
    else if (!strcmp(name, "slow_us"))
        slow_us = (unsigned)value;
    else if (!strcmp(name, "fail_gemm"))
        gemm_status = (int)value;
    else if (!strcmp(name, "take_mib")) {
        if (!device_take(value * MIB))
            phantom_refuse("PHANTOM_FAULT wants to take %llu MiB; the device has less free", (unsigned long long)value);
    } else
        phantom_refuse("PHANTOM_FAULT names \"%s\"; expected fail_allocation, take_mib, fail_after, "
                       "misreport_free_mib, slow_us or fail_gemm", name);
}

/* A child made by fork shares nothing with the driver: CUDA refuses to work in it. */
static void after_fork(void) { forked = touched; }

static void load(void) {
    pthread_atfork(NULL, NULL, after_fork);
    const char *wanted = getenv("PHANTOM_FAULT");
    if (!wanted || !*wanted)
        return;
    char *copy = strdup(wanted), *rest = copy;
    for (char *item; (item = strsep(&rest, ","));) {
        char name[32], tail;
        unsigned long long value;
        if (sscanf(item, " %31[a-z_]:%llu %c", name, &value, &tail) != 2 || value > UINT32_MAX)
            phantom_refuse("PHANTOM_FAULT holds \"%s\"; expected name:number, separated by commas", item);
        set_fault(name, value);
    }
    free(copy);
}

/* ---- the beginning of every call ---- */

static cudaError_t create_context(void) {
    cudaError_t result = cudaSuccess;
    pthread_mutex_lock(&context_lock);
    if (!touched) {
        if (device_create_context())
            touched = true;
        else
            result = cudaErrorMemoryAllocation;
    }
    pthread_mutex_unlock(&context_lock);
    return result;
}

cudaError_t phantom_enter(void) {
    pthread_once(&once, load);
    if (forked)
        return cudaErrorInitializationError;
    if (++calls > last_good_call && !sticky)
        sticky = code_after;
    if (sticky)
        return (cudaError_t)sticky;
    return touched ? cudaSuccess : create_context();
}

cudaError_t phantom_poison(cudaError_t error) {
    if (!sticky)
        sticky = (int)error;
    return (cudaError_t)sticky;
}

cudaError_t phantom_sticky(void) { return (cudaError_t)sticky; }

cudaError_t phantom_remember(cudaError_t error) {
    if (error != cudaSuccess)
        last = error;
    return error;
}

API cudaError_t cudaGetLastError(void) {
    cudaError_t found = sticky ? (cudaError_t)sticky : last;
    last = cudaSuccess;
    return found;
}

API cudaError_t cudaPeekAtLastError(void) { return sticky ? (cudaError_t)sticky : last; }

bool phantom_touched(void) { return touched; }

bool phantom_allocation_fails(void) {
    uint64_t left = allocations_until_failure;
    while (left > 0)
        if (atomic_compare_exchange_weak(&allocations_until_failure, &left, left - 1))
            return left == 1;
    return false;
}

void phantom_launched(void) {
    launches++;
    if (slow_us)
        usleep(slow_us);
}

int phantom_gemm_fault(void) { return atomic_exchange(&gemm_status, 0); }

uint64_t phantom_reported_free(uint64_t free_bytes) { return misreported >= 0 ? (uint64_t)misreported : free_bytes; }

/* ---- control, for phantom.py ---- */

API uint64_t phantom_calls(void) { return calls; }
API uint64_t phantom_launches(void) { return launches; }
API uint64_t phantom_total_bytes(void) { return device_total_bytes(); }
API uint64_t phantom_used_bytes(void) { return device_used_bytes(); }
API uint64_t phantom_free_bytes(void) { return device_free_bytes(); }
API bool phantom_set_total(uint64_t bytes) { return device_set_total(bytes); }
API bool phantom_take(uint64_t bytes) { return device_take(bytes); }
API void phantom_give_back(void) { device_give_back(); }
API void phantom_fail_allocation(uint64_t nth) { allocations_until_failure = nth; }
API void phantom_misreport_free(int64_t bytes) { misreported = bytes; }
API void phantom_slow(unsigned us) { slow_us = us; }
API void phantom_fail_gemm(int status) { gemm_status = status; }

API void phantom_fail_after(uint64_t count, int code) {
    code_after = code;
    last_good_call = calls + count;
}

API void phantom_reset(void) {
    pthread_once(&once, load);  /* lest PHANTOM_FAULT be read after it was reset */
    allocations_until_failure = 0;
    last_good_call = UINT64_MAX;
    misreported = -1;
    slow_us = 0;
    gemm_status = 0;
    sticky = 0;
    last = cudaSuccess;
    device_give_back();
}
