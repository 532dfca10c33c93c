/* Counts the calls of processes to the C library by kind, and lets the ones that are planned fail.
 *
 * Preloaded (LD_PRELOAD) by injector.py, which describes the file that FAULT_STATE names: it is mapped by every process
 * of a tree, so that calls are numbered across all of them. Files count when they lie under FAULT_ROOT, for what a
 * program imports is not ours to test; processes, threads and sockets always count. A planned call does nothing, sets
 * errno and returns its failure. Each planned call, or with `logs_all` each counted one, is a line of FAULT_LOG:
 * kind, number, process, error, function, path.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, CREATE, WRITE, READ, FSYNC, RENAME, UNLINK, MMAP, ACCEPT, SOCKET, FORK, THREAD, N_KINDS };
static const char *const NAMES[] = {"open",   "create", "write",  "read",   "fsync", "rename",
                                    "unlink", "mmap",   "accept", "socket", "fork",  "thread"};
#define N_PLANS 4

struct plan { int32_t kind, error; uint64_t first, last; };  /* calls first ... last fail; 0, 0: none */
struct state {
  int32_t is_active, logs_all;
  struct plan plans[N_PLANS];
  _Atomic uint64_t n_calls[N_KINDS];
};

static struct state *state;
static char root[PATH_MAX];
static size_t root_length;
static int log_file = -1;

/* By syscall: the functions below are the ones that are counted. */
__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("FAULT_ROOT"), *path = getenv("FAULT_STATE"), *log = getenv("FAULT_LOG");
  if (!folder || !path || !log) return;
  int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void *mapped = (void *)syscall(SYS_mmap, NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  syscall(SYS_close, file);
  if (mapped == MAP_FAILED) return;
  root_length = strlen(folder);
  if (root_length >= sizeof root) return;
  memcpy(root, folder, root_length + 1);
  int low = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  /* Out of the way: a program may expect the first free descriptors, or close them. */
  log_file = (int)syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, 900);
  syscall(SYS_close, low);
  state = mapped;
}

static int is_ours(const char *path) {
  return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static void path_of(int file, char *path) {
  char link[40];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = 0;
}

static void absolute(int folder, const char *path, char *whole) {
  size_t length = 0;
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (syscall(SYS_getcwd, whole, PATH_MAX) < 0) whole[0] = 0;
    } else path_of(folder, whole);
    length = strlen(whole);
  }
  snprintf(whole + length, PATH_MAX - length, "%s%s", length ? "/" : "", path);
}

/* Return the error with which this call is to fail, 0 for none. */
static int counted(enum kind kind, const char *function, const char *path) {
  if (!state->is_active) return 0;
  uint64_t number = atomic_fetch_add(&state->n_calls[kind], 1) + 1;
  int error = 0;
  for (int i = 0; i < N_PLANS && !error; i++) {
    const struct plan *plan = &state->plans[i];
    if (plan->kind == (int)kind && plan->first <= number && number <= plan->last) error = plan->error;
  }
  if (error || state->logs_all) {
    char line[PATH_MAX + 200];
    int length = snprintf(line, sizeof line, "%s\t%lu\t%d\t%d\t%s\t%s\n", NAMES[kind], (unsigned long)number,
                          (int)syscall(SYS_getpid), error, function, path);
    syscall(SYS_write, log_file, line, length);
  }
  return error;
}

static int by_path(enum kind kind, const char *function, int folder, const char *path) {
  char whole[PATH_MAX];
  if (!state || !path) return 0;
  absolute(folder, path, whole);
  return is_ours(whole) ? counted(kind, function, whole) : 0;
}

static int by_file(enum kind kind, const char *function, int file) {
  char path[PATH_MAX];
  if (!state || file < 0 || !state->is_active) return 0;
  path_of(file, path);
  return is_ours(path) ? counted(kind, function, path) : 0;
}

static int by_nothing(enum kind kind, const char *function) { return state ? counted(kind, function, "") : 0; }

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAILS(error, failure) \
  do { \
    int failed = (error); \
    if (failed) { errno = failed; return failure; } \
  } while (0)

static enum kind opening(int flags) { return flags & (O_CREAT | O_ACCMODE) ? CREATE : OPEN; }

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    FAILS(by_path(opening(flags), #name, AT_FDCWD, path), -1); \
    return real(path, flags, mode); \
  }
#define OPENS_AT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    REAL(name); \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    FAILS(by_path(opening(flags), #name, folder, path), -1); \
    return real(folder, path, flags, mode); \
  }
#define FOPENS(name) \
  FILE *name(const char *path, const char *mode) { \
    REAL(name); \
    FAILS(by_path(mode[0] == 'r' && !strchr(mode, '+') ? OPEN : CREATE, #name, AT_FDCWD, path), NULL); \
    return real(path, mode); \
  }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
FOPENS(fopen)
FOPENS(fopen64)

/* name, result, failure, parameters, arguments, error */
#define WRAPS(name, result, failure, parameters, arguments, error) \
  result name parameters { \
    REAL(name); \
    FAILS(error, failure); \
    return real arguments; \
  }

int __open_2(const char *, int);
int __open64_2(const char *, int);
WRAPS(__open_2, int, -1, (const char *path, int flags), (path, flags), by_path(opening(flags), "open", AT_FDCWD, path))
WRAPS(__open64_2, int, -1, (const char *path, int flags), (path, flags),
      by_path(opening(flags), "open64", AT_FDCWD, path))
WRAPS(opendir, DIR *, NULL, (const char *path), (path), by_path(OPEN, "opendir", AT_FDCWD, path))
WRAPS(mkdir, int, -1, (const char *path, mode_t mode), (path, mode), by_path(CREATE, "mkdir", AT_FDCWD, path))

WRAPS(write, ssize_t, -1, (int file, const void *data, size_t n), (file, data, n), by_file(WRITE, "write", file))
WRAPS(pwrite, ssize_t, -1, (int file, const void *data, size_t n, off_t at), (file, data, n, at),
      by_file(WRITE, "pwrite", file))
WRAPS(pwrite64, ssize_t, -1, (int file, const void *data, size_t n, off64_t at), (file, data, n, at),
      by_file(WRITE, "pwrite64", file))
WRAPS(writev, ssize_t, -1, (int file, const struct iovec *data, int n), (file, data, n),
      by_file(WRITE, "writev", file))
WRAPS(ftruncate, int, -1, (int file, off_t n), (file, n), by_file(WRITE, "ftruncate", file))
WRAPS(ftruncate64, int, -1, (int file, off64_t n), (file, n), by_file(WRITE, "ftruncate64", file))
WRAPS(fallocate, int, -1, (int file, int mode, off_t at, off_t n), (file, mode, at, n),
      by_file(WRITE, "fallocate", file))
WRAPS(fallocate64, int, -1, (int file, int mode, off64_t at, off64_t n), (file, mode, at, n),
      by_file(WRITE, "fallocate64", file))
WRAPS(fwrite, size_t, 0, (const void *data, size_t size, size_t n, FILE *file), (data, size, n, file),
      by_file(WRITE, "fwrite", fileno(file)))
WRAPS(copy_file_range, ssize_t, -1, (int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags),
      (from, at, to, to_at, n, flags), by_file(WRITE, "copy_file_range", to))

/* These return their error. */
int posix_fallocate(int file, off_t at, off_t n) {
  REAL(posix_fallocate);
  int error = by_file(WRITE, "posix_fallocate", file);
  return error ? error : real(file, at, n);
}
int posix_fallocate64(int file, off64_t at, off64_t n) {
  REAL(posix_fallocate64);
  int error = by_file(WRITE, "posix_fallocate64", file);
  return error ? error : real(file, at, n);
}

WRAPS(read, ssize_t, -1, (int file, void *data, size_t n), (file, data, n), by_file(READ, "read", file))
WRAPS(pread, ssize_t, -1, (int file, void *data, size_t n, off_t at), (file, data, n, at),
      by_file(READ, "pread", file))
WRAPS(pread64, ssize_t, -1, (int file, void *data, size_t n, off64_t at), (file, data, n, at),
      by_file(READ, "pread64", file))
WRAPS(fread, size_t, 0, (void *data, size_t size, size_t n, FILE *file), (data, size, n, file),
      by_file(READ, "fread", fileno(file)))

WRAPS(fsync, int, -1, (int file), (file), by_file(FSYNC, "fsync", file))
WRAPS(fdatasync, int, -1, (int file), (file), by_file(FSYNC, "fdatasync", file))

WRAPS(rename, int, -1, (const char *from, const char *to), (from, to), by_path(RENAME, "rename", AT_FDCWD, to))
WRAPS(renameat, int, -1, (int from_folder, const char *from, int folder, const char *to),
      (from_folder, from, folder, to), by_path(RENAME, "renameat", folder, to))
WRAPS(link, int, -1, (const char *from, const char *to), (from, to), by_path(RENAME, "link", AT_FDCWD, to))
WRAPS(linkat, int, -1, (int from_folder, const char *from, int folder, const char *to, int flags),
      (from_folder, from, folder, to, flags), by_path(RENAME, "linkat", folder, to))
WRAPS(symlink, int, -1, (const char *from, const char *to), (from, to), by_path(RENAME, "symlink", AT_FDCWD, to))

WRAPS(unlink, int, -1, (const char *path), (path), by_path(UNLINK, "unlink", AT_FDCWD, path))
WRAPS(unlinkat, int, -1, (int folder, const char *path, int flags), (folder, path, flags),
      by_path(UNLINK, "unlinkat", folder, path))
WRAPS(rmdir, int, -1, (const char *path), (path), by_path(UNLINK, "rmdir", AT_FDCWD, path))

WRAPS(mmap, void *, MAP_FAILED, (void *at, size_t n, int rights, int flags, int file, off_t offset),
      (at, n, rights, flags, file, offset), by_file(MMAP, "mmap", file))
WRAPS(mmap64, void *, MAP_FAILED, (void *at, size_t n, int rights, int flags, int file, off64_t offset),
      (at, n, rights, flags, file, offset), by_file(MMAP, "mmap64", file))

WRAPS(accept, int, -1, (int socket, __SOCKADDR_ARG address, socklen_t *n), (socket, address, n),
      by_nothing(ACCEPT, "accept"))
WRAPS(accept4, int, -1, (int socket, __SOCKADDR_ARG address, socklen_t *n, int flags), (socket, address, n, flags),
      by_nothing(ACCEPT, "accept4"))
WRAPS(socket, int, -1, (int domain, int type, int protocol), (domain, type, protocol), by_nothing(SOCKET, "socket"))
WRAPS(socketpair, int, -1, (int domain, int type, int protocol, int pair[2]), (domain, type, protocol, pair),
      by_nothing(SOCKET, "socketpair"))
WRAPS(pipe, int, -1, (int pair[2]), (pair), by_nothing(SOCKET, "pipe"))
WRAPS(pipe2, int, -1, (int pair[2], int flags), (pair, flags), by_nothing(SOCKET, "pipe2"))
WRAPS(epoll_create1, int, -1, (int flags), (flags), by_nothing(SOCKET, "epoll_create1"))

/* Python forks where vfork fails: the one is a part of the other. */
static __thread int failed_vfork;

pid_t fork(void) {
  REAL(fork);
  int error = failed_vfork;
  failed_vfork = 0;
  FAILS(error ? error : by_nothing(FORK, "fork"), -1);
  return real();
}

/* A child that shares the memory of its parent cannot return from a function of ours; a plain child may do all that such
 * a child may do. */
pid_t vfork(void) {
  static pid_t (*real)(void);
  if (!real) real = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
  failed_vfork = by_nothing(FORK, "vfork");
  FAILS(failed_vfork, -1);
  return real();
}

int posix_spawn(pid_t *child, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const variables[]) {
  REAL(posix_spawn);
  int error = by_nothing(FORK, "posix_spawn");
  return error ? error : real(child, path, actions, attributes, arguments, variables);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  REAL(pthread_create);
  int error = by_nothing(THREAD, "pthread_create");
  return error ? error : real(thread, attributes, run, argument);
}
