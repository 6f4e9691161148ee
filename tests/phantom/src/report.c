/* The two ways to stop: a call that is not imitated, and settings or a host that cannot work. */
#include "phantom.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *format, va_list values) {
    char line[1024];
    int begun = snprintf(line, sizeof line, "phantom: ");
    vsnprintf(line + begun, sizeof line - (size_t)begun - 1, format, values);
    strcat(line, "\n");
    /* One write, so that lines of several processes do not mix. */
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        abort();
}

_Noreturn void phantom_missing(const char *format, ...) {
    char what[512];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    fflush(stdout);
    fprintf(stderr, "phantom: %s is not imitated\n", what);
    abort();
}

_Noreturn void phantom_refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    say(format, values);
    va_end(values);
    _exit(2);
}

/* A trap must know its name when it is called with whatever arguments, so each needs code of its own: a pool of
 * functions, handed out one per name. */
#define POOL 128
static const char *names[POOL];
static unsigned taken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define TRAP(n) static void trap_##n(void) { phantom_missing("%s", names[n]); }
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
/* The numbers are octal: 0 to 0177 are 128 functions. */
#define ALL(X)                                                                                                  \
    EIGHT(X, 00) EIGHT(X, 01) EIGHT(X, 02) EIGHT(X, 03) EIGHT(X, 04) EIGHT(X, 05) EIGHT(X, 06) EIGHT(X, 07)     \
    EIGHT(X, 010) EIGHT(X, 011) EIGHT(X, 012) EIGHT(X, 013) EIGHT(X, 014) EIGHT(X, 015) EIGHT(X, 016) EIGHT(X, 017)
ALL(TRAP)
#define ENTRY(n) trap_##n,
static void (*const pool[POOL])(void) = {ALL(ENTRY)};

void *phantom_trap(const char *name) {
    pthread_mutex_lock(&lock);
    unsigned at = 0;
    while (at < taken && strcmp(names[at], name) != 0)
        at++;
    if (at == taken) {
        if (taken == POOL)
            phantom_missing("%s (and more than %d other entry points asked for by name)", name, POOL);
        names[taken++] = strdup(name);
    }
    pthread_mutex_unlock(&lock);
    return (void *)pool[at];
}
