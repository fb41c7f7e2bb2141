/* A memory pool for ONNX Runtime whose resident size is the peak of what is in use, and no more.
 *
 * Without an arena each large tensor is mapped, cleared page by page by the kernel, and unmapped,
 * run after run; with one, freed blocks that fit no later tensor stay behind, and the arena grows
 * to 1.4 to 4 times the peak. This pool keeps freed pages and, where no free run of pages is long
 * enough, extends the longest by pages of others (mremap), or gathers all under new addresses:
 * only page tables change, nothing is cleared or copied. It asks the system for pages only when
 * fewer are free than needed, so pages held = the highest number of pages in use. Moves cost up
 * to half of what clearing the pages would, so what a caller allows beyond that peak is taken
 * from the system instead.
 *
 * It is a custom op library without ops: a session that registers it and sets
 * session.use_env_allocators=1 allocates from here, in any language.
 *
 * Blocks below SMALL_BYTES come from malloc. Where mapping fails, pages already gathered stay
 * in the pool and the caller sees an allocation that failed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_BYTES 65536u
#define ALIGNMENT 64u

/* Every gathered piece is a mapping of its own, and the kernel allows 65,530 of them. Beyond
 * this many free runs the smallest are given back instead of gathered. */
#define MOST_FREE_RUNS 4096u

typedef struct {
  char *start;
  size_t bytes;
} Run;

/* Runs sorted by address. */
typedef struct {
  Run *runs;
  size_t count, room;
} Runs;

static Runs free_runs, used_runs;
static size_t held_bytes, free_bytes, moved_bytes, highest_bytes, allowed_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The index of the first run that starts at `start` or later. */
static size_t position(const Runs *list, const char *start) {
  size_t low = 0, high = list->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (list->runs[middle].start < start)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Makes room for `more` runs; whether there is. */
static int reserve(Runs *list, size_t more) {
  if (list->count + more <= list->room) return 1;
  size_t room = 2 * list->room + more + 64;
  Run *grown = realloc(list->runs, room * sizeof(Run));
  if (!grown) return 0;
  list->runs = grown;
  list->room = room;
  return 1;
}

static void insert(Runs *list, size_t at, Run run) {
  memmove(list->runs + at + 1, list->runs + at, (list->count - at) * sizeof(Run));
  list->runs[at] = run;
  list->count++;
}

static void erase(Runs *list, size_t at) {
  list->count--;
  memmove(list->runs + at, list->runs + at + 1, (list->count - at) * sizeof(Run));
}

static void unmap(size_t at) {
  Run run = free_runs.runs[at];
  if (munmap(run.start, run.bytes)) return;
  free_bytes -= run.bytes;
  held_bytes -= run.bytes;
  erase(&free_runs, at);
}

static size_t smallest_free(void) {
  size_t best = 0;
  for (size_t i = 1; i < free_runs.count; i++)
    if (free_runs.runs[i].bytes < free_runs.runs[best].bytes) best = i;
  return best;
}

static size_t largest_free(void) {
  size_t best = 0;
  for (size_t i = 1; i < free_runs.count; i++)
    if (free_runs.runs[i].bytes > free_runs.runs[best].bytes) best = i;
  return best;
}

/* Puts pages into the pool, joined with their neighbours. Room was made when they were mapped. */
static void give(Run run) {
  free_bytes += run.bytes;
  size_t at = position(&free_runs, run.start);
  if (at < free_runs.count && run.start + run.bytes == free_runs.runs[at].start) {
    run.bytes += free_runs.runs[at].bytes;
    erase(&free_runs, at);
  }
  if (at > 0 && free_runs.runs[at - 1].start + free_runs.runs[at - 1].bytes == run.start)
    free_runs.runs[at - 1].bytes += run.bytes;
  else
    insert(&free_runs, at, run);
  if (free_runs.count > MOST_FREE_RUNS) unmap(smallest_free());
}

/* The head of the shortest free run that is long enough, or NULL. */
static char *take_whole(size_t bytes) {
  size_t best = free_runs.count;
  for (size_t i = 0; i < free_runs.count; i++) {
    size_t length = free_runs.runs[i].bytes;
    if (length >= bytes && (best == free_runs.count || length < free_runs.runs[best].bytes))
      best = i;
  }
  if (best == free_runs.count) return NULL;
  Run *run = free_runs.runs + best;
  char *start = run->start;
  free_bytes -= bytes;
  run->start += bytes;
  run->bytes -= bytes;
  if (!run->bytes) erase(&free_runs, best);
  return start;
}

static size_t whole_pages(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

/* Whether the pages moved. Kernels before 6.17 refuse what lies in several mappings, and have
 * unmapped the target by then: it is mapped again, and callers try less. */
static int move(char *source, char *target, size_t bytes) {
  if (mremap(source, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target) != MAP_FAILED) return 1;
  char *again = mmap(target, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (again != MAP_FAILED && again != target) munmap(again, bytes);
  return 0;
}

/* Moves free pages to the `bytes` at `target`, longest runs first; the bytes moved. */
static size_t gather(char *target, size_t bytes) {
  size_t moved = 0;
  while (moved < bytes && free_runs.count) {
    size_t at = largest_free();
    Run *run = free_runs.runs + at;
    size_t piece = run->bytes < bytes - moved ? run->bytes : bytes - moved;
    while (piece && !move(run->start + run->bytes - piece, target + moved, piece))
      piece = piece / 2 / whole_pages(1) * whole_pages(1);
    if (!piece) break;
    run->bytes -= piece;
    if (!run->bytes) erase(&free_runs, at);
    free_bytes -= piece;
    /* The untouched pages that stood at the target are gone. */
    held_bytes -= piece;
    moved += piece;
  }
  moved_bytes += moved;
  return moved;
}

/* Fills the `bytes` of untouched pages at `target`, which count as held, with free pages. */
static void fill(char *target, size_t bytes) {
  size_t moved = gather(target, bytes);
  /* Where the kernel refused a move, pages that wait unused would make the pool larger than
   * what is in use: they go back. */
  for (size_t excess = bytes - moved; free_runs.count && excess && free_bytes;) {
    size_t length = free_runs.runs[free_runs.count - 1].bytes;
    unmap(free_runs.count - 1);
    excess = excess > length ? excess - length : 0;
  }
}

/* Untouched pages, which count as held: at `wanted` or nowhere, anywhere if that is NULL. */
static char *map(char *wanted, size_t bytes) {
  int fixed = wanted ? MAP_FIXED_NOREPLACE : 0;
  char *start =
      mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (start == MAP_FAILED) return NULL;
  /* Kernels before 4.17 take the address for a hint. */
  if (wanted && start != wanted) {
    munmap(start, bytes);
    return NULL;
  }
  held_bytes += bytes;
  return start;
}

/* Whether the pool may hold `bytes` more instead of moving pages. */
static int may_grow(size_t bytes) {
  size_t used = held_bytes - free_bytes + bytes;
  return held_bytes + bytes <= (used > highest_bytes ? used : highest_bytes) + allowed_bytes;
}

/* The longest free run and the addresses behind or before it, where these are vacant: only what
 * the run lacks is moved. NULL where they are not. */
static char *take_extended(size_t bytes) {
  if (!free_runs.count) return NULL;
  size_t at = largest_free();
  Run run = free_runs.runs[at];
  size_t lack = bytes - run.bytes;
  char *start = run.start, *side = map(run.start + run.bytes, lack);
  if (!side && (uintptr_t)run.start > lack) start = side = map(run.start - lack, lack);
  if (!side) return NULL;
  erase(&free_runs, at);
  free_bytes -= run.bytes;
  fill(side, lack);
  return start;
}

/* New addresses, filled with free pages as far as these go. */
static char *take_gathered(size_t bytes) {
  char *start = map(NULL, bytes);
  if (start) fill(start, bytes);
  return start;
}

static void *from_malloc(size_t bytes) {
  void *block = NULL;
  return bytes == 0 || posix_memalign(&block, ALIGNMENT, bytes) ? NULL : block;
}

static void *take(size_t bytes) {
  if (bytes < SMALL_BYTES) return from_malloc(bytes);
  size_t rounded = whole_pages(bytes);
  if (!rounded) return NULL;
  pthread_mutex_lock(&lock);
  char *start = NULL;
  /* Room for this block, and for it and every other block to become a free run of its own. */
  if (reserve(&used_runs, 1) && reserve(&free_runs, used_runs.count + 3)) {
    start = take_whole(rounded);
    if (!start && may_grow(rounded)) start = map(NULL, rounded);
    if (!start) start = take_extended(rounded);
    if (!start) start = take_gathered(rounded);
    if (held_bytes - free_bytes > highest_bytes) highest_bytes = held_bytes - free_bytes;
    if (start) insert(&used_runs, position(&used_runs, start), (Run){start, rounded});
  }
  pthread_mutex_unlock(&lock);
  return start;
}

static void put_back(void *block) {
  if (!block) return;
  pthread_mutex_lock(&lock);
  size_t at = position(&used_runs, block);
  int ours = at < used_runs.count && used_runs.runs[at].start == (char *)block;
  if (ours) {
    Run run = used_runs.runs[at];
    erase(&used_runs, at);
    give(run);
  }
  pthread_mutex_unlock(&lock);
  if (!ours) free(block);
}

/* Bytes held, bytes of these that are free, bytes moved so far, free runs. */
void remat_page_pool_statistics(size_t statistics[4]) {
  pthread_mutex_lock(&lock);
  statistics[0] = held_bytes;
  statistics[1] = free_bytes;
  statistics[2] = moved_bytes;
  statistics[3] = free_runs.count;
  pthread_mutex_unlock(&lock);
}

/* From now on the pool may hold `bytes` more than the highest number in use. */
void remat_page_pool_allow(size_t bytes) {
  pthread_mutex_lock(&lock);
  allowed_bytes = bytes;
  pthread_mutex_unlock(&lock);
}

/* Gives all free pages back to the system. */
void remat_page_pool_trim(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = free_runs.count; i-- > 0;) unmap(i);
  highest_bytes = held_bytes - free_bytes;
  pthread_mutex_unlock(&lock);
}

/* For tests: the pool without a runtime. */
void *remat_page_pool_take(size_t bytes) { return take(bytes); }
void remat_page_pool_put_back(void *block) { put_back(block); }

/* ---- ONNX Runtime's C interface, as far as it is needed here ----
 *
 * The interface is a table of functions that only ever grows at its end, so a function is known
 * by its place. Only functions and members of version 18 and earlier are used. */

enum {
  API_VERSION = 18,
  CREATE_ENV = 3,
  CREATE_CPU_MEMORY_INFO = 69,
  RELEASE_ENV = 92,
  RELEASE_STATUS = 93,
  REGISTER_ALLOCATOR = 176,
  LOGGING_LEVEL_ERROR = 3,
  DEVICE_ALLOCATOR = 0,
  DEFAULT_MEMORY = 0
};

typedef struct Allocator {
  uint32_t version;
  void *(*alloc)(struct Allocator *, size_t);
  void (*free)(struct Allocator *, void *);
  const void *(*info)(const struct Allocator *);
  void *(*reserve)(struct Allocator *, size_t);
} Allocator;

typedef struct {
  const void *const *(*get_api)(uint32_t version);
} ApiBase;

static const void *memory_info;

static void *allocate(Allocator *self, size_t bytes) { return (void)self, take(bytes); }
static void release(Allocator *self, void *block) { (void)self, put_back(block); }
static const void *info(const Allocator *self) { return (void)self, memory_info; }

static Allocator allocator = {API_VERSION, allocate, release, info, allocate};

/* The runtime closes the library with the last session that registered it, but keeps the allocator. */
static void stay_loaded(void) {
  Dl_info self;
  if (dladdr((void *)stay_loaded, &self)) dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

/* Called when a session's options register this library. Returns NULL or the runtime's error. */
void *RegisterCustomOps(void *options, const ApiBase *base) {
  static int is_registered;
  const void *const *api = base->get_api(API_VERSION);
  void *(*create_env)(int, const char *, void **) = (void *(*)(int, const char *, void **))api[CREATE_ENV];
  void *(*create_info)(int, int, const void **) =
      (void *(*)(int, int, const void **))api[CREATE_CPU_MEMORY_INFO];
  void *(*enlist)(void *, Allocator *) = (void *(*)(void *, Allocator *))api[REGISTER_ALLOCATOR];
  void (*release_env)(void *) = (void (*)(void *))api[RELEASE_ENV];
  void (*release_status)(void *) = (void (*)(void *))api[RELEASE_STATUS];
  (void)options;
  stay_loaded();

  /* There is one environment in a process; this asks for another reference to it. */
  void *environment = NULL;
  void *status = create_env(LOGGING_LEVEL_ERROR, "remat", &environment);
  if (!status && !memory_info) status = create_info(DEVICE_ALLOCATOR, DEFAULT_MEMORY, &memory_info);
  if (!status) {
    status = enlist(environment, &allocator);
    /* A second session finds the pool in place already. */
    if (status && is_registered) {
      release_status(status);
      status = NULL;
    }
    if (!status) is_registered = 1;
  }
  if (environment) release_env(environment);
  return status;
}
