/* Sets a process's wall clock for a test: seconds since 1970, in a mapped file of eight bytes; 0 lets the clock run, HELD_AHEAD_S seconds ahead. libfaketime can also
   read the time from a file, but a program with jemalloc, such as Debian's Redis, does not start under it. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *held;
static int64_t ahead_s;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("HELD_TIME");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *held, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) _exit(97);
    close(file);
    const char *ahead = getenv("HELD_AHEAD_S");
    ahead_s = ahead ? atoll(ahead) : 0;
    held = page;
}

/* Other constructors may call this before `map` has run. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    int64_t at = held ? *held : 0;
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (at == 0 || !wall) {
        int failed = (int)syscall(SYS_clock_gettime, clock, now);
        if (wall && !failed) now->tv_sec += ahead_s;
        return failed;
    }
    now->tv_sec = at;
    now->tv_nsec = 0;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (to) *to = at.tv_sec;
    return at.tv_sec;
}
