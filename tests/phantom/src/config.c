/* The PHANTOM_* variables: read once, on the first call. A wrong value ends the process with one line. */
#include "phantom.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct config settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *text(const char *name, const char *otherwise) {
    const char *found = getenv(name);
    return found && *found ? found : otherwise;
}

static uint64_t mebibytes(const char *name, const char *otherwise) {
    const char *found = text(name, otherwise);
    char *end;
    unsigned long long value = strtoull(found, &end, 10);
    if (*found < '0' || *found > '9' || *end || value > ((uint64_t)1 << 23))
        phantom_refuse("%s is \"%s\"; expected a whole number of MiB, at most 8388608 (8 TiB)", name, found);
    return value * MIB;
}

static bool choice(const char *name, const char *no, const char *yes) {
    const char *found = text(name, no);
    if (strcmp(found, no) != 0 && strcmp(found, yes) != 0)
        phantom_refuse("%s is \"%s\"; expected \"%s\" or \"%s\"", name, found, no, yes);
    return strcmp(found, yes) == 0;
}

static void load(void) {
    settings.total = mebibytes("PHANTOM_TOTAL_MIB", "81920");
    settings.context = mebibytes("PHANTOM_CONTEXT_MIB", "500");
    if (settings.total <= settings.context)
        phantom_refuse("PHANTOM_TOTAL_MIB is %llu; expected more than PHANTOM_CONTEXT_MIB, which is %llu",
                       (unsigned long long)(settings.total / MIB), (unsigned long long)(settings.context / MIB));
    const char *capability = text("PHANTOM_CAPABILITY", "8.0");
    char rest;
    if (sscanf(capability, "%2d.%1d%c", &settings.major, &settings.minor, &rest) != 2 || settings.major < 5 ||
        settings.minor < 0)
        phantom_refuse("PHANTOM_CAPABILITY is \"%s\"; expected a compute capability such as 8.0", capability);
    settings.unified = choice("PHANTOM_UNIFIED", "0", "1");
    settings.nvml = choice("PHANTOM_NVML", "absent", "per_process");
    settings.name = strdup(text("PHANTOM_NAME", "Phantom GPU"));
    const char *device = text("PHANTOM_DEVICE", NULL);
    settings.device = device ? strdup(device) : NULL;
}

const struct config *config(void) {
    pthread_once(&once, load);
    return &settings;
}
