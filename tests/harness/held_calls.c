/* Calls that never return, like those to a resolver or a file server that is gone: getaddrinfo of names that start with "hung.", and opening
   files named "held.*" while the file $HELD_CALLS exists. When a call hangs, $HELD_CALLS.reached is created. And calls that wait while
   $HELD_CALLS.wait.CALL exists, and fail while $HELD_CALLS.fail.CALL does: inotify_init1 and accept4. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_it(const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void reach(void) {
    char reached[4096];
    const char *held = getenv("HELD_CALLS");
    snprintf(reached, sizeof reached, "%s.reached", held ? held : "held");
    close(open_it(reached, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

static void hold(void) {
    reach();
    for (;;) pause();
}

static int is_to(const char *what) {
    char path[4096];
    const char *held = getenv("HELD_CALLS");
    snprintf(path, sizeof path, "%s.%s", held ? held : "held", what);
    return access(path, F_OK) == 0;
}

static int opened(const char *path, int flags, mode_t mode) {
    const char *name = strrchr(path, '/'), *held = getenv("HELD_CALLS");
    name = name ? name + 1 : path;
    if (held && strncmp(name, "held.", 5) == 0 && access(held, F_OK) == 0) hold();
    return open_it(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return opened(path, flags, mode);
}

int getaddrinfo(const char *restrict node, const char *restrict service, const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
    (void)service;
    (void)hints;
    (void)found;
    if (node && strncmp(node, "hung.", 5) == 0) hold();
    return EAI_NONAME;
}

int inotify_init1(int flags) {
    if (is_to("wait.inotify_init1")) {
        reach();
        while (is_to("wait.inotify_init1")) usleep(5000);
    }
    if (is_to("fail.inotify_init1")) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_inotify_init1, flags);
}

int accept4(int socket, struct sockaddr *restrict address, socklen_t *restrict length, int flags) {
    if (is_to("fail.accept4")) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_accept4, socket, address, length, flags);
}
