/* Address space of the device, and the bytes in it.
 *
 * One large reservation without access rights. Memory is put behind a piece of it when it is allocated (the kernel
 * commits a page when it is first written) and taken away when it is freed, so copies and memsets hold true bytes while
 * what only kernels would have written costs nothing. Addresses are handed out upwards and come round late, so that
 * what was freed stays inaccessible for a while. */
#include "phantom.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE ((uintptr_t)0x200000000000)
#define SIZE ((size_t)16 << 40)
#define PAGE ((size_t)4096)

struct range {
    uintptr_t start;
    size_t size;
    void *owner;
    bool accessible;
};
/* Ranges in ascending order, none overlapping. */
struct ranges {
    struct range *items;
    size_t count, room;
};

static uintptr_t base;
static struct ranges reserved, mapped;
static uintptr_t cursor;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the first range that ends after the address; `count` when there is none. */
static size_t after(const struct ranges *ranges, uintptr_t address) {
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges->items[middle].start + ranges->items[middle].size > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void insert(struct ranges *ranges, struct range range) {
    if (ranges->count == ranges->room) {
        ranges->room = ranges->room ? 2 * ranges->room : 256;
        ranges->items = realloc(ranges->items, ranges->room * sizeof range);
        if (!ranges->items)
            phantom_refuse("the host has no memory for the table of allocations");
    }
    size_t at = after(ranges, range.start);
    memmove(ranges->items + at + 1, ranges->items + at, (ranges->count - at) * sizeof range);
    ranges->items[at] = range;
    ranges->count++;
}

static void erase(struct ranges *ranges, size_t at) {
    ranges->count--;
    memmove(ranges->items + at, ranges->items + at + 1, (ranges->count - at) * sizeof *ranges->items);
}

static void open_space(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *got = mmap((void *)BASE, SIZE, PROT_NONE, flags, -1, 0);
    if (got == MAP_FAILED)
        phantom_refuse("the host refuses 16 TiB of address space (%s); is there a limit on virtual memory?",
                       strerror(errno));
    cursor = base = (uintptr_t)got;
}

bool space_holds(const void *address) {
    return base && (uintptr_t)address >= base && (uintptr_t)address < base + SIZE;
}

static uintptr_t aligned(uintptr_t address, size_t alignment) { return (address + alignment - 1) & ~(alignment - 1); }

/* Returns the first gap from `from` on, 0 when there is none. */
static uintptr_t gap(uintptr_t from, size_t size, size_t alignment) {
    uintptr_t start = aligned(from, alignment);
    for (size_t i = after(&reserved, start); i < reserved.count; i++) {
        const struct range *next = &reserved.items[i];
        if (start + size <= next->start)
            return start;
        start = aligned(next->start + next->size, alignment);
    }
    return start + size <= base + SIZE ? start : 0;
}

uintptr_t space_reserve(size_t size, size_t alignment) {
    size = aligned(size, PAGE);
    if (size == 0 || size > SIZE)
        return 0;
    pthread_mutex_lock(&lock);
    if (!base)
        open_space();
    uintptr_t start = gap(cursor, size, alignment);
    if (!start)
        start = gap(base, size, alignment);
    if (start) {
        insert(&reserved, (struct range){.start = start, .size = size});
        cursor = start + size;
    }
    pthread_mutex_unlock(&lock);
    return start;
}

/* Takes the pages away and the right to access them. */
static void withdraw(uintptr_t start, size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap((void *)start, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        phantom_refuse("the host refuses to unmap device memory: %s", strerror(errno));
}

size_t space_release(uintptr_t start) {
    size_t size = 0;
    pthread_mutex_lock(&lock);
    size_t at = after(&reserved, start);
    if (at < reserved.count && reserved.items[at].start == start) {
        size = reserved.items[at].size;
        size_t first = after(&mapped, start);
        bool any = false;
        while (first < mapped.count && mapped.items[first].start < start + size) {
            erase(&mapped, first);
            any = true;
        }
        if (any)
            withdraw(start, size);
        erase(&reserved, at);
    }
    pthread_mutex_unlock(&lock);
    return size;
}

static void grant(uintptr_t start, size_t size) {
    /* Without this, the first byte of each 2 MiB would commit all of them. Hosts without the feature refuse: fine. */
    madvise((void *)start, size, MADV_NOHUGEPAGE);
    if (mprotect((void *)start, size, PROT_READ | PROT_WRITE))
        phantom_refuse("the host refuses %zu bytes of lazily committed memory (%s); does it forbid overcommit?", size,
                       strerror(errno));
}

bool space_map(uintptr_t start, size_t size, void *owner, bool accessible) {
    size = aligned(size, PAGE);
    pthread_mutex_lock(&lock);
    size_t space = after(&reserved, start), other = after(&mapped, start);
    bool possible = space < reserved.count && reserved.items[space].start <= start &&
                    start + size <= reserved.items[space].start + reserved.items[space].size &&
                    (other == mapped.count || start + size <= mapped.items[other].start);
    if (possible) {
        insert(&mapped, (struct range){start, size, owner, accessible});
        if (accessible)
            grant(start, size);
    }
    pthread_mutex_unlock(&lock);
    return possible;
}

/* The lock must be held. */
static bool covered(uintptr_t start, size_t size, bool accessible) {
    uintptr_t at = start;
    for (size_t i = after(&mapped, start); i < mapped.count && at < start + size; i++) {
        const struct range *range = &mapped.items[i];
        if (range->start > at || (accessible && !range->accessible))
            return false;
        at = range->start + range->size;
    }
    return at >= start + size;
}

bool space_set_accessible(uintptr_t start, size_t size) {
    pthread_mutex_lock(&lock);
    bool possible = covered(start, size, false);
    for (size_t i = after(&mapped, start); possible && i < mapped.count && mapped.items[i].start < start + size; i++)
        if (!mapped.items[i].accessible) {
            mapped.items[i].accessible = true;
            grant(mapped.items[i].start, mapped.items[i].size);
        }
    pthread_mutex_unlock(&lock);
    return possible;
}

bool space_unmap(uintptr_t start, size_t size, void **owner) {
    size = aligned(size, PAGE);
    pthread_mutex_lock(&lock);
    size_t at = after(&mapped, start);
    bool found = at < mapped.count && mapped.items[at].start == start && mapped.items[at].size == size;
    if (found) {
        *owner = mapped.items[at].owner;
        erase(&mapped, at);
        withdraw(start, size);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool space_is_live(const void *address, size_t size) {
    pthread_mutex_lock(&lock);
    bool live = size == 0 || covered((uintptr_t)address, size, true);
    pthread_mutex_unlock(&lock);
    return live;
}

/* ---- bytes ---- */

static const char ZEROS[PAGE];

static bool all_zero(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i += PAGE)
        if (memcmp((const char *)bytes + i, ZEROS, size - i < PAGE ? size - i : PAGE) != 0)
            return false;
    return true;
}

static void clear(char *from, size_t size) {
    char *first = (char *)aligned((uintptr_t)from, PAGE), *last = (char *)(((uintptr_t)from + size) & ~(PAGE - 1));
    if (first >= last) {
        memset(from, 0, size);
        return;
    }
    memset(from, 0, (size_t)(first - from));
    memset(last, 0, (size_t)(from + size - last));
    if (madvise(first, (size_t)(last - first), MADV_DONTNEED))
        memset(first, 0, (size_t)(last - first));
}

void space_fill(void *address, const void *pattern, size_t width, size_t count) {
    if (all_zero(pattern, width))
        clear(address, width * count);
    else if (width == 1)
        memset(address, *(const unsigned char *)pattern, count);
    else
        for (size_t i = 0; i < count; i++)
            memcpy((char *)address + i * width, pattern, width);
}

/* Says whether no page of a piece of the space was ever written: all of it is zeros, and reading it would cost pages.
 * `map` is /proc/self/pagemap, whose entry of a page says in its two highest bits whether it is present or swapped. */
static bool never_written(int map, const void *start, size_t size) {
    uint64_t entries[512];
    uintptr_t page = (uintptr_t)start / PAGE, end = ((uintptr_t)start + size + PAGE - 1) / PAGE;
    while (page < end) {
        size_t count = end - page < 512 ? end - page : 512;
        if (pread(map, entries, count * sizeof *entries, (off_t)(page * sizeof *entries)) !=
            (ssize_t)(count * sizeof *entries))
            return false;
        for (size_t i = 0; i < count; i++)
            if (entries[i] >> 62)
                return false;
        page += count;
    }
    return true;
}

/* Copies a piece; a page that was never written is read as zeros without being committed, and kept so. */
static void copy_pages(char *to, const char *from, size_t size) {
    for (size_t at = 0; at < size;) {
        size_t piece = PAGE - ((uintptr_t)(to + at) & (PAGE - 1));
        if (piece > size - at)
            piece = size - at;
        if (!all_zero(from + at, piece) || !all_zero(to + at, piece))
            memmove(to + at, from + at, piece);
        at += piece;
    }
}

void space_copy(void *to, const void *from, size_t size) {
    if (!space_holds(to)) {
        memmove(to, from, size);
        return;
    }
    /* Opened for each copy, since a child that is forked has a map of its own. */
    bool overlap = (uintptr_t)to < (uintptr_t)from + size && (uintptr_t)from < (uintptr_t)to + size;
    int map = size >= GRANULARITY && space_holds(from) && !overlap ? open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) : -1;
    for (size_t at = 0; at < size; at += GRANULARITY) {
        char *target = (char *)to + at;
        const char *source = (const char *)from + at;
        size_t piece = size - at < GRANULARITY ? size - at : GRANULARITY;
        if (map < 0 || !never_written(map, source, piece))
            copy_pages(target, source, piece);
        else if (!never_written(map, target, piece))
            clear(target, piece);
    }
    if (map >= 0)
        close(map);
}
