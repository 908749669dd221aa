/* For LD_PRELOAD: moves the wall clock of a process, slows its files and sends its connections to a port elsewhere, as
 * the file $SKIM_DISTURB says meanwhile.
 *
 * The file holds `struct disturbance`. Waits of the C library until a time of day are moved too, when they begin:
 * otherwise a process whose clock is an hour ahead would wait an hour longer than it means to. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct disturbance {
    int64_t clock_s;  /* added to the wall clock */
    int64_t write_ms; /* the time of each write to a regular file */
    int64_t port;     /* connections to this port of any machine; 0: none */
    int64_t instead;  /* go to this port of this machine */
};

static const struct disturbance none, *volatile now = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SKIM_DISTURB");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) now = page;
    close(file);
}

/* `name` as the C library has it; versions: of a symbol that has an older form of another kind */
static void *real(const char *name, const char *version) {
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    return found ? found : dlsym(RTLD_NEXT, name);
}

#define REAL(result, name, version, ...)                                   \
    static result (*function)(__VA_ARGS__);                                \
    if (!function) function = (result(*)(__VA_ARGS__))real(#name, version)

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(int, clock_gettime, NULL, clockid_t, struct timespec *);
    int failed = function(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += now->clock_s;
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    REAL(int, gettimeofday, NULL, struct timeval *, void *);
    int failed = function(time, zone);
    if (!failed) time->tv_sec += now->clock_s;
    return failed;
}

time_t time(time_t *found) {
    struct timespec moved;
    clock_gettime(CLOCK_REALTIME, &moved);
    if (found) *found = moved.tv_sec;
    return moved.tv_sec;
}

/* A time of day lies decades after the start of the epoch, a time of the monotonic clock does not. */
static struct timespec meant(const struct timespec *until) {
    struct timespec found = *until;
    if (found.tv_sec > 1000000000) found.tv_sec -= now->clock_s;
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    REAL(int, pthread_cond_timedwait, "GLIBC_2.3.2", pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec moved = meant(until);
    return function(condition, mutex, &moved);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    REAL(int, sem_timedwait, NULL, sem_t *, const struct timespec *);
    struct timespec moved = meant(until);
    return function(semaphore, &moved);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    REAL(int, pthread_mutex_timedlock, NULL, pthread_mutex_t *, const struct timespec *);
    struct timespec moved = meant(until);
    return function(mutex, &moved);
}

/* Abseil, in Ray and gRPC, waits by this system call. */
long syscall(long number, ...) {
    REAL(long, syscall, NULL, long, ...);
    va_list rest;
    long given[6];
    va_start(rest, number);
    for (int at = 0; at < 6; at++) given[at] = va_arg(rest, long);
    va_end(rest);
    struct timespec moved;
    if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME) && given[3]) {
        moved = meant((const struct timespec *)given[3]);
        given[3] = (long)&moved;
    }
    return function(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

static void slowly(int file) {
    struct stat found;
    int64_t ms = now->write_ms;
    if (!ms || fstat(file, &found) || !S_ISREG(found.st_mode)) return;
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&left, NULL);
}

ssize_t write(int file, const void *bytes, size_t count) {
    REAL(ssize_t, write, NULL, int, const void *, size_t);
    slowly(file);
    return function(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, NULL, int, const struct iovec *, int);
    slowly(file);
    return function(file, parts, count);
}

int fflush(FILE *stream) {
    REAL(int, fflush, NULL, FILE *);
    if (stream) slowly(fileno(stream));
    return function(stream);
}

int fsync(int file) {
    REAL(int, fsync, NULL, int);
    slowly(file);
    return function(file);
}

int connect(int socket, const struct sockaddr *address, socklen_t size) {
    REAL(int, connect, NULL, int, const struct sockaddr *, socklen_t);
    const int mapped = address->sa_family == AF_INET6; /* gRPC connects to IPv4 addresses in this form too */
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    if (!now->port || (!mapped && address->sa_family != AF_INET)) return function(socket, address, size);
    if (ntohs(mapped ? six->sin6_port : four->sin_port) != now->port) return function(socket, address, size);
    struct sockaddr_storage other;
    memcpy(&other, address, size);
    const uint32_t here = htonl(INADDR_LOOPBACK);
    if (mapped) {
        ((struct sockaddr_in6 *)&other)->sin6_port = htons(now->instead);
        memcpy(&((struct sockaddr_in6 *)&other)->sin6_addr.s6_addr[12], &here, sizeof here);
    } else {
        ((struct sockaddr_in *)&other)->sin_port = htons(now->instead);
        ((struct sockaddr_in *)&other)->sin_addr.s_addr = here;
    }
    return function(socket, (struct sockaddr *)&other, size);
}
