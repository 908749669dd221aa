/* For LD_PRELOAD: slows the files of a process and sends its connections to a port elsewhere, as the file $SKIM_DISTURB,
 * which holds `struct disturbance`, says meanwhile. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct disturbance {
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

/* function: `name` as the C library has it */
#define REAL(result, name, ...)             \
    static result (*function)(__VA_ARGS__); \
    if (!function) function = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void slowly(int file) {
    struct stat found;
    int64_t ms = now->write_ms;
    if (!ms || fstat(file, &found) || !S_ISREG(found.st_mode)) return;
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&left, NULL);
}

ssize_t write(int file, const void *bytes, size_t count) {
    REAL(ssize_t, write, int, const void *, size_t);
    slowly(file);
    return function(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    slowly(file);
    return function(file, parts, count);
}

int fflush(FILE *stream) {
    REAL(int, fflush, FILE *);
    if (stream) slowly(fileno(stream));
    return function(stream);
}

int fsync(int file) {
    REAL(int, fsync, int);
    slowly(file);
    return function(file);
}

int connect(int socket, const struct sockaddr *address, socklen_t size) {
    REAL(int, connect, int, const struct sockaddr *, socklen_t);
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
