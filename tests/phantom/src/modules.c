/* What compiled CUDA code registers when a library is loaded: its kernels and its device variables. */
#include "phantom.h"
#include "modules.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- variables: given device memory (part of the context, not charged) when first asked for ---- */

struct variable {
    const void *host;
    size_t size;
    uintptr_t device;
};
static struct variable *variables;
static size_t variable_count, variable_room;

/* ---- the kernels that are imitated, in ascending order of their host function ---- */

static struct imitation *imitations;
static size_t imitation_count, imitation_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *grown(void *items, size_t *room, size_t size) {
    *room = *room ? 2 * *room : 64;
    items = realloc(items, *room * size);
    if (!items)
        phantom_refuse("the host has no memory for the table of kernels");
    return items;
}

/* Returns the text after the prefix, NULL where it does not begin with it. */
static const char *after(const char *text, const char *prefix) {
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

/* Returns the size of the type whose mangled name begins there; 0 for a type that is not known. */
static size_t mangled_size(const char *type) {
    static const struct {
        const char *name;
        size_t size;
    } KNOWN[] = {{"bEE", 1}, {"aEE", 1}, {"hEE", 1}, {"sEE", 2}, {"tEE", 2}, {"iEE", 4}, {"jEE", 4}, {"lEE", 8},
                 {"mEE", 8}, {"fEE", 4}, {"dEE", 8}, {"N3c104HalfEEE", 2}, {"N3c108BFloat16EEE", 2},
                 {"N3c107complexIfEEEE", 8}, {"N3c107complexIdEEEE", 16}};
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (after(type, KNOWN[i].name))
            return KNOWN[i].size;
    return 0;
}

/* at::native::vectorized_elementwise_kernel<width, FillFunctor<T>, std::array<char*, 1>>(int, FillFunctor<T>, array) */
static size_t fill_width(const char *kernel) {
    const char *width = after(kernel, "_ZN2at6native29vectorized_elementwise_kernelILi");
    const char *type = width ? after(width + strspn(width, "0123456789"), "ENS0_11FillFunctorI") : NULL;
    return type && strstr(type, "St5arrayIPcLm1EEEEviT0_T1_") ? mangled_size(type) : 0;
}

static struct imitation imitation_of(const char *kernel) {
    static const char *INIT = "_ZN14at_cuda_detail3cub6detail4scan23DeviceCompactInitKernelI";
    static const char *REDUCE = "_ZN14at_cuda_detail3cub6detail6reduce28DeviceReduceSingleTileKernelINS2_10policy_hubIi";
    size_t width = fill_width(kernel);
    if (width)
        return (struct imitation){.what = FILL, .width = width};
    /* DeviceCompactInitKernel<State, int* or long*>(State, int, counter): what it does is to set the counter to zero. */
    if (after(kernel, INIT))
        return (struct imitation){.what = COUNT, .width = strstr(kernel, "EEEPiEE") ? 4 : 8, .target = 2};
    /* DeviceReduceSingleTileKernel<policy of int, ...>(input, output, ...): the sum that counts what is not zero. */
    if (after(kernel, REDUCE))
        return (struct imitation){.what = COUNT, .width = 4, .target = 1};
    return (struct imitation){0};
}

const struct imitation *find_imitation(const void *function) {
    size_t low = 0, high = imitation_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)imitations[middle].function < (uintptr_t)function)
            low = middle + 1;
        else
            high = middle;
    }
    return low < imitation_count && imitations[low].function == function ? &imitations[low] : NULL;
}

static void add_imitation(struct imitation imitation) {
    if (imitation_count == imitation_room)
        imitations = grown(imitations, &imitation_room, sizeof *imitations);
    size_t at = imitation_count++;
    for (; at > 0 && (uintptr_t)imitations[at - 1].function > (uintptr_t)imitation.function; at--)
        imitations[at] = imitations[at - 1];
    imitations[at] = imitation;
}

/* ---- registration ---- */

API void **__cudaRegisterFatBinary(UNUSED void *binary) {
    static void *handle;
    config();  /* so that a wrong setting is told when torch is loaded */
    return &handle;
}
API void __cudaRegisterFatBinaryEnd(UNUSED void **handle) {}
API void __cudaUnregisterFatBinary(UNUSED void **handle) {}
API char __cudaInitModule(UNUSED void **handle) { return 1; }

API void __cudaRegisterFunction(UNUSED void **handle, const char *function, UNUSED char *device_function,
                                const char *name, UNUSED int thread_limit, UNUSED uint3 *thread, UNUSED uint3 *block,
                                UNUSED dim3 *block_size, UNUSED dim3 *grid_size, UNUSED int *warp_size) {
    struct imitation imitation = imitation_of(name);
    if (!imitation.width)
        return;
    imitation.function = function;
    pthread_mutex_lock(&lock);
    add_imitation(imitation);
    pthread_mutex_unlock(&lock);
}

API void __cudaRegisterVar(UNUSED void **handle, char *host, UNUSED char *device, UNUSED const char *name,
                           UNUSED int external, size_t size, UNUSED int constant, UNUSED int global) {
    pthread_mutex_lock(&lock);
    if (variable_count == variable_room)
        variables = grown(variables, &variable_room, sizeof *variables);
    variables[variable_count++] = (struct variable){host, size, 0};
    pthread_mutex_unlock(&lock);
}

/* ---- device variables ---- */

static uintptr_t address_of(const void *symbol, size_t *size) {
    uintptr_t found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < variable_count && !found; i++) {
        struct variable *variable = &variables[i];
        if (variable->host != symbol)
            continue;
        if (!variable->device) {
            variable->device = space_reserve(variable->size ? variable->size : 1, 4096);
            space_map(variable->device, variable->size ? variable->size : 1, NULL, true);
        }
        found = variable->device;
        *size = variable->size;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    ENTER();
    size_t size;
    *pointer = (void *)address_of(symbol, &size);
    return *pointer ? cudaSuccess : phantom_remember(cudaErrorInvalidSymbol);
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t count, size_t offset,
                                   UNUSED enum cudaMemcpyKind kind) {
    ENTER();
    size_t size;
    uintptr_t start = address_of(symbol, &size);
    if (!start)
        return phantom_remember(cudaErrorInvalidSymbol);
    if (offset + count > size)
        return phantom_remember(cudaErrorInvalidValue);
    space_copy((char *)start + offset, from, count);
    clock_copy(count, true);
    return cudaSuccess;
}
