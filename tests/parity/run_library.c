// Runs a function of a compiled library on a piece of memory that another process has filled: at the same address, so
// that all addresses in it hold. `run_library LIBRARY FUNCTION FRAME AT SIZE FILE`: FILE is read, and written again.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct {
  int32_t type, padding;
  int64_t value;
} Any;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t n) {
  fprintf(stderr, "%s:", kind);
  for (int32_t i = 0; i < n; i++) fprintf(stderr, " %s", parts[i]);
  fprintf(stderr, "\n");
}

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  int (*function)(void*, const Any*, int32_t, Any*) = (int (*)(void*, const Any*, int32_t, Any*))dlsym(library, argv[2]);
  void* at = (void*)strtoull(argv[4], 0, 0);
  size_t size = strtoull(argv[5], 0, 0);
  if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) return 4;
  FILE* file = fopen(argv[6], "r+b");
  if (!function || !file || fread(at, 1, size, file) != size) return 5;
  Any frame = {1, 0, (int64_t)strtoull(argv[3], 0, 0)}, result = {0, 0, 0};
  if (function(0, &frame, 1, &result)) return 6;
  rewind(file);
  return fwrite(at, 1, size, file) == size && !fclose(file) ? 0 : 7;
}
