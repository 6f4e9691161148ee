/* The bytes of the device, by process.
 *
 * With PHANTOM_DEVICE several processes share one device through a file: a table of who holds how much, changed under
 * flock. A process that has died frees what it held when the next one looks. Without it, the table is private. */
#include "phantom.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x31746e6168706d6fULL

struct table {
    uint64_t magic;
    struct process processes[MAX_PROCESSES];
};

static struct table private_table = {.magic = MAGIC};
static struct table *table;
static int file = -1;
static uint64_t total, taken;
static struct process *mine;  /* set while the lock is held */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the start time of a running process, 0 when there is none (a zombie holds no device memory). */
static uint64_t start_time(int pid) {
    char path[64], stat[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return 0;
    ssize_t size = read(opened, stat, sizeof stat - 1);
    close(opened);
    if (size <= 0)
        return 0;
    stat[size] = 0;
    const char *after_name = strrchr(stat, ')');  /* the name may hold spaces and brackets */
    char state;
    unsigned long long born;
    if (!after_name || sscanf(after_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                                              "%*d %*d %llu", &state, &born) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : born;
}

static void open_table(void) {
    total = config()->total;
    table = &private_table;
    const char *path = config()->device;
    if (!path)
        return;
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat found;
    if (file < 0 || flock(file, LOCK_EX) || fstat(file, &found))
        phantom_refuse("PHANTOM_DEVICE is \"%s\", which cannot be opened: %s", path, strerror(errno));
    bool fresh = found.st_size == 0;
    if ((!fresh && found.st_size != sizeof *table) || (fresh && ftruncate(file, sizeof *table)))
        phantom_refuse("PHANTOM_DEVICE is \"%s\"; expected a new file or one that a phantom has made", path);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (table == MAP_FAILED)
        phantom_refuse("PHANTOM_DEVICE is \"%s\", which cannot be mapped: %s", path, strerror(errno));
    if (fresh)
        table->magic = MAGIC;
    if (table->magic != MAGIC)
        phantom_refuse("PHANTOM_DEVICE is \"%s\"; expected a new file or one that a phantom has made", path);
    flock(file, LOCK_UN);
}

/* Frees the entries of the dead and finds this process's own. */
static void sweep(void) {
    int self = getpid();
    struct process *unused = NULL;
    mine = NULL;
    for (struct process *p = table->processes; p < table->processes + MAX_PROCESSES; p++) {
        if (p->pid && p->pid != self && start_time(p->pid) != p->born)
            memset(p, 0, sizeof *p);
        if (p->pid == self && !mine)
            mine = p;
        if (!p->pid && !unused)
            unused = p;
    }
    static int owner;  /* the entry may be that of an earlier process with this number */
    if (mine && owner != self)
        memset(mine, 0, sizeof *mine);
    else if (!mine)
        mine = unused;
    if (!mine)
        phantom_refuse("more than %d processes share the device \"%s\"", MAX_PROCESSES, config()->device);
    if (!mine->pid)
        *mine = (struct process){.pid = self, .born = start_time(self)};
    owner = self;
}

static void begin(void) {
    pthread_mutex_lock(&lock);
    if (!table)
        open_table();
    if (file >= 0)
        flock(file, LOCK_EX);
    sweep();
}

static void end(void) {
    if (file >= 0)
        flock(file, LOCK_UN);
    pthread_mutex_unlock(&lock);
}

/* The lock must be held. */
static uint64_t free_bytes(void) {
    uint64_t held = taken;
    for (unsigned i = 0; i < MAX_PROCESSES; i++)
        held += table->processes[i].used + table->processes[i].context;
    return held < total ? total - held : 0;
}

bool device_charge(uint64_t bytes) {
    begin();
    bool fits = bytes <= free_bytes();
    if (fits)
        mine->used += bytes;
    end();
    return fits;
}

void device_return(uint64_t bytes) {
    begin();
    mine->used -= bytes;
    end();
}

bool device_create_context(void) {
    begin();
    bool fits = mine->context || config()->context <= free_bytes();
    if (fits)
        mine->context = config()->context;
    end();
    return fits;
}

uint64_t device_free_bytes(void) {
    begin();
    uint64_t found = free_bytes();
    end();
    return found;
}

/* Asked in forked children too (the device's properties), so this looks at no process. */
uint64_t device_total_bytes(void) {
    pthread_mutex_lock(&lock);
    if (!table)
        open_table();
    uint64_t found = total;
    pthread_mutex_unlock(&lock);
    return found;
}

uint64_t device_used_bytes(void) {
    begin();
    uint64_t found = mine->used;
    end();
    return found;
}

bool device_set_total(uint64_t bytes) {
    begin();
    bool possible = !mine->used && bytes > config()->context;
    if (possible)
        total = bytes;
    end();
    return possible;
}

bool device_take(uint64_t bytes) {
    begin();
    bool fits = bytes <= free_bytes();
    if (fits)
        taken += bytes;
    end();
    return fits;
}

void device_give_back(void) {
    begin();
    taken = 0;
    end();
}

unsigned device_processes(struct process *out) {
    unsigned count = 0;
    begin();
    for (unsigned i = 0; i < MAX_PROCESSES; i++)
        if (table->processes[i].context)
            out[count++] = table->processes[i];
    end();
    return count;
}
