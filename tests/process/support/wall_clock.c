/* Moves the wall clock of one process, by as many milliseconds as the first eight bytes of a file say at the moment.
 *
 * To be preloaded. The monotonic clocks are left alone. System calls, not the next definition of each function: a server
 * may ask for the time before the loader is ready for such questions.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift_ms;

__attribute__((constructor)) static void find_shift(void) {
    const char *path = getenv("LOCK_TESTS_WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *shift_ms, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) shift_ms = page;
}

static int64_t wall_ns(clockid_t clock) {
    struct timespec now;
    syscall(SYS_clock_gettime, clock, &now);
    int64_t shift = shift_ms ? *shift_ms * 1000000 : 0;
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec + shift;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, at);
    int64_t ns = wall_ns(clock);
    at->tv_sec = ns / 1000000000;
    at->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    int64_t us = wall_ns(CLOCK_REALTIME) / 1000;
    at->tv_sec = us / 1000000;
    at->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *at) {
    time_t now = wall_ns(CLOCK_REALTIME) / 1000000000;
    if (at) *at = now;
    return now;
}
