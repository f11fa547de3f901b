/* Loaded before all else (LD_PRELOAD) by ci/fenced: device memory of lavapipe, which is what it asks of posix_memalign at whole pages, lies
 * between pages that cannot be accessed, and ends where the second of them begins, but for less than 256 bytes. Other memory is the C
 * library's. Fresh memory is full of numbers that are no zeros. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { ROOM = 1 << 16, PAGE = 4096, ROUNDED = 256, FENCE = 1 << 21, GARBAGE = 0xA5, DIRTIED = 1 << 20 };

/* What was handed out, by address: open addressing, where GONE marks what was freed. */
static struct { void *address, *begin; size_t length; } taken[ROOM];
#define GONE ((void *)1)
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *lowest = (char *)UINTPTR_MAX, *highest;

static size_t start_of(void *address) { return ((uintptr_t)address / ROUNDED) % ROOM; }

int posix_memalign(void **out, size_t alignment, size_t size) {
    static int (*plain)(void **, size_t, size_t);
    if (!plain) plain = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    if (alignment != PAGE || !size) return plain(out, alignment, size);
    size_t used = (size + ROUNDED - 1) / ROUNDED * ROUNDED, body = (used + PAGE - 1) / PAGE * PAGE, length = body + 2 * (size_t)FENCE;
    char *begin = mmap(0, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return ENOMEM;
    if (mprotect(begin + FENCE, body, PROT_READ | PROT_WRITE)) { munmap(begin, length); return ENOMEM; }
    char *address = begin + FENCE + body - used;
    memset(address, GARBAGE, used < DIRTIED ? used : DIRTIED);
    pthread_mutex_lock(&lock);
    if (address < lowest) lowest = address;
    if (address > highest) highest = address;
    size_t place = start_of(address), tried = 0;
    while (tried < ROOM && taken[place].address && taken[place].address != GONE) place = (place + 1) % ROOM, tried++;
    if (tried < ROOM) { taken[place].address = address; taken[place].begin = begin; taken[place].length = length; }
    pthread_mutex_unlock(&lock);
    if (tried == ROOM) { munmap(begin, length); return ENOMEM; }
    *out = address;
    return 0;
}

void free(void *address) {
    static void (*plain)(void *);
    if (!plain) plain = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    void *begin = 0;
    size_t length = 0;
    if ((char *)address >= lowest && (char *)address <= highest && (uintptr_t)address % ROUNDED == 0) {
        pthread_mutex_lock(&lock);
        for (size_t place = start_of(address), tried = 0; tried < ROOM && taken[place].address; place = (place + 1) % ROOM, tried++)
            if (taken[place].address == address) {
                begin = taken[place].begin;
                length = taken[place].length;
                taken[place].address = GONE;
                break;
            }
        pthread_mutex_unlock(&lock);
    }
    if (begin) munmap(begin, length);
    else plain(address);
}
