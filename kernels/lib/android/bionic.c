/* What musl's headers call, in terms of what Android's C library has: ../android.py compiles with the headers of musl, whose
 * types are those of Android's on 64-bit machines, where these two are not. Seen by nothing outside of the library. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <unistd.h>

int* __errno(void);
__attribute__((visibility("hidden"))) int* __errno_location(void) { return __errno(); }

/* What the compiler makes of memcmp() == 0. */
__attribute__((visibility("hidden"), no_builtin("memcmp", "bcmp"))) int bcmp(const void* a, const void* b, size_t n) {
  return memcmp(a, b, n);
}

static long cores(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set)) return 1;
  long n = 0;
  for (int i = 0; i < CPU_SETSIZE; i++) n += CPU_ISSET(i, &set) != 0;
  return n;
}

/* The numbers of its questions differ. */
__attribute__((visibility("hidden"))) long sysconf(int name) {
  switch (name) {
    case _SC_PAGESIZE: return getpagesize();
    case _SC_NPROCESSORS_CONF:
    case _SC_NPROCESSORS_ONLN: return cores();
    default: return -1;
  }
}
