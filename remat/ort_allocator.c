/* The page pool as ONNX Runtime's allocator: a custom op library without ops. A session that
 * registers it and sets session.use_env_allocators=1 allocates from the pool, in any language.
 *
 * Of the runtime's C interface only what is needed is written down here. It is a table of
 * functions that only ever grows at its end, so a function is known by its place. Only functions
 * and members of version 18 and earlier are used. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#include "page_pool.h"

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

static void *allocate(Allocator *self, size_t bytes) {
  return (void)self, remat_page_pool_take(bytes);
}
static void release(Allocator *self, void *block) {
  (void)self, remat_page_pool_put_back(block);
}
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
