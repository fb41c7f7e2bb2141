/* A memory pool for ONNX Runtime whose resident size is the peak of what is in use, and no more.
 *
 * Without an arena each large tensor is mapped, cleared page by page by the kernel, and unmapped,
 * run after run; with one, freed blocks that fit no later tensor stay behind, and the arena grows
 * to 1.4 to 4 times the peak. This pool keeps freed pages and, where no free run of pages is long
 * enough, extends the longest by pages of others (mremap), or gathers all under new addresses:
 * only page tables change, nothing is cleared or copied. It asks the system for pages only when
 * fewer are free than needed, so pages held = the highest number of pages in use. Moves cost as
 * much as clearing the pages where blocks are small, so what a caller allows beyond that peak is
 * taken from the system instead, and where the sequence of blocks repeats from run to run it is
 * learned and laid out in one region (page_plan.c), in which nothing moves. A plan is advice: a
 * block that comes at another size, or too early, is served as without one.
 *
 * Blocks below SMALL_BYTES come from malloc. Where mapping fails, pages already gathered stay
 * in the pool and the caller sees an allocation that failed.
 */
#define _GNU_SOURCE
#include "page_pool.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "page_plan.h"
#include "page_runs.h"

#define SMALL_BYTES 65536u
#define ALIGNMENT 64u

/* Every gathered piece is a mapping of its own, and the kernel allows 65,530 of them. Beyond
 * this many free runs the smallest are given back instead of gathered. */
#define MOST_FREE_RUNS 4096u

/* A period is looked for in the log of the last blocks when it has this length, and at each
 * doubling; a log that is longer than the second is begun anew. */
#define FIRST_LOOK 64u
#define LONGEST_LOG 16384u

/* Where no plan was found, or one had to be given up, this many blocks pass before the next log
 * begins, and twice as many each time; a plan that has served for so many cycles begins anew. */
#define FIRST_REST 4096u
#define GOOD_CYCLES 16u

static Runs free_runs, used_runs;
static size_t held_bytes, free_bytes, moved_bytes, highest_bytes, allowed_bytes;
static size_t taken_blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The blocks since `log_first` was taken, while there is no plan. */
static Block log_blocks[LONGEST_LOG];
static size_t log_first, log_count, next_look = FIRST_LOOK, moved_before;
static size_t rest = FIRST_REST, rest_until;

/* The plan, the place in its cycle of the next block, how many blocks of this cycle it could not
 * serve, and its pages: NULL until the cycle is where the fewest are in use. */
static Plan plan;
static size_t cursor, cycles, missed;
static char *region;

static void unmap(size_t at) {
  Run run = free_runs.runs[at];
  if (munmap(run.start, run.bytes)) return;
  free_bytes -= run.bytes;
  held_bytes -= run.bytes;
  remat_runs_erase(&free_runs, at);
}

/* Puts pages into the pool, joined with their neighbours. Room was made when they were mapped. */
static void give(Run run) {
  free_bytes += run.bytes;
  size_t at = remat_runs_position(&free_runs, run.start);
  if (at < free_runs.count && run.start + run.bytes == free_runs.runs[at].start) {
    run.bytes += free_runs.runs[at].bytes;
    remat_runs_erase(&free_runs, at);
  }
  if (at > 0 && free_runs.runs[at - 1].start + free_runs.runs[at - 1].bytes == run.start)
    free_runs.runs[at - 1].bytes += run.bytes;
  else
    remat_runs_insert(&free_runs, at, run);
  if (free_runs.count > MOST_FREE_RUNS) unmap(remat_runs_smallest(&free_runs));
}

/* These pages, or NULL where not all of them are free. */
static char *take_at(char *start, size_t bytes) {
  if (!remat_runs_carve(&free_runs, start, bytes)) return NULL;
  free_bytes -= bytes;
  return start;
}

/* The head of the shortest free run that is long enough, or NULL. */
static char *take_whole(size_t bytes) {
  size_t at = remat_runs_fitting(&free_runs, bytes);
  return at == free_runs.count ? NULL : take_at(free_runs.runs[at].start, bytes);
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
    size_t at = remat_runs_largest(&free_runs);
    Run *run = free_runs.runs + at;
    size_t piece = run->bytes < bytes - moved ? run->bytes : bytes - moved;
    while (piece && !move(run->start + run->bytes - piece, target + moved, piece))
      piece = piece / 2 / whole_pages(1) * whole_pages(1);
    if (!piece) break;
    run->bytes -= piece;
    if (!run->bytes) remat_runs_erase(&free_runs, at);
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

/* ---- the plan ---- */

static void forget_log(void) {
  log_count = 0;
  next_look = FIRST_LOOK;
}

/* Its region stays, as pages like all others. */
static void forget_plan(void) {
  free(plan.blocks);
  plan = (Plan){NULL, 0, 0, 0};
  region = NULL;
  forget_log();
}

static void give_up(void) {
  forget_plan();
  rest_until = taken_blocks + rest;
  rest *= 2;
}

/* How many pages a plan of the last `period` blocks may take: all but those of blocks, weights for
 * one, that were in use before the last three periods. */
static size_t plannable_pages(size_t period) {
  size_t others = 0, first = taken_blocks - 3 * period;
  for (size_t i = 0; i < used_runs.count; i++)
    if (used_runs.runs[i].number < first) others += used_runs.runs[i].bytes;
  return (highest_bytes + allowed_bytes - others) / whole_pages(1);
}

/* Makes a plan if blocks repeat and pages were moved since the last look. */
static void look(void) {
  size_t period = moved_bytes > moved_before ? remat_plan_period(log_blocks, log_count) : 0;
  moved_before = moved_bytes;
  next_look *= 2;
  if (period) plan = remat_plan_make(log_blocks, log_count, period, plannable_pages(period));
  if (period && !plan.count)
    give_up();
  else if (plan.count || next_look > LONGEST_LOG)
    forget_log();
  cursor = cycles = missed = 0;
}

/* Writes down that a block was taken, and freed. */
static void note_taken(size_t bytes) {
  taken_blocks++;
  if (plan.count || taken_blocks < rest_until) return;
  if (!log_count) log_first = taken_blocks - 1;
  log_blocks[log_count++] = (Block){(uint32_t)(bytes / whole_pages(1)), 0, 0};
  if (log_count == next_look) look();
}

static void note_freed(size_t number) {
  if (number >= log_first && number - log_first < log_count)
    log_blocks[number - log_first].life = (uint32_t)(taken_blocks - number);
}

/* Maps the plan's region and gives back the free pages outside, so that blocks still in use there
 * hold what those that follow them in the region do not need yet. */
static void map_region(void) {
  for (size_t i = free_runs.count; i-- > 0;) unmap(i);
  region = map(NULL, plan.height * whole_pages(1));
  if (region) give((Run){region, plan.height * whole_pages(1), 0});
}

static int is_in_region(const char *start) {
  return region && start >= region && start < region + plan.height * whole_pages(1);
}

/* Keeps free pages, but for those outside the region that it has room for now. */
static void keep(Run run) {
  int is_excess = region && !is_in_region(run.start) && held_bytes > highest_bytes + allowed_bytes;
  if (is_excess && !munmap(run.start, run.bytes))
    held_bytes -= run.bytes;
  else
    give(run);
}

/* The pages that the plan has for the next block, or NULL. */
static char *take_planned(size_t bytes) {
  if (!plan.count) return NULL;
  const Block *block = plan.blocks + cursor;
  if (!region && cursor == plan.quiet) map_region();
  if (++cursor == plan.count) {
    cursor = missed = 0;
    if (++cycles == GOOD_CYCLES) rest = FIRST_REST;
  }
  if (block->pages != bytes / whole_pages(1)) {
    give_up();
    return NULL;
  }
  if (!region) return NULL;
  char *start = take_at(region + block->offset * whole_pages(1), bytes);
  if (!start && ++missed > plan.count / 8) give_up();
  return start;
}

/* ---- taking and putting back ---- */

/* The longest free run and the addresses behind or before it, where these are vacant: only what
 * the run lacks is moved. NULL where they are not. */
static char *take_extended(size_t bytes) {
  if (!free_runs.count) return NULL;
  size_t at = remat_runs_largest(&free_runs);
  Run run = free_runs.runs[at];
  size_t lack = bytes - run.bytes;
  char *start = run.start, *side = map(run.start + run.bytes, lack);
  if (!side && (uintptr_t)run.start > lack) start = side = map(run.start - lack, lack);
  if (!side) return NULL;
  remat_runs_erase(&free_runs, at);
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

void *remat_page_pool_take(size_t bytes) {
  if (bytes < SMALL_BYTES) return from_malloc(bytes);
  size_t rounded = whole_pages(bytes);
  if (!rounded) return NULL;
  pthread_mutex_lock(&lock);
  char *start = NULL;
  /* Room for this block, and for it and every other block to become a free run of its own. */
  if (remat_runs_reserve(&used_runs, 1) && remat_runs_reserve(&free_runs, used_runs.count + 3)) {
    start = take_planned(rounded);
    if (!start) start = take_whole(rounded);
    if (!start && may_grow(rounded)) start = map(NULL, rounded);
    if (!start) start = take_extended(rounded);
    if (!start) start = take_gathered(rounded);
    if (held_bytes - free_bytes > highest_bytes) highest_bytes = held_bytes - free_bytes;
    if (start) {
      remat_runs_insert(&used_runs, remat_runs_position(&used_runs, start), (Run){start, rounded, taken_blocks});
      note_taken(rounded);
    }
  }
  pthread_mutex_unlock(&lock);
  return start;
}

void remat_page_pool_put_back(void *block) {
  if (!block) return;
  pthread_mutex_lock(&lock);
  size_t at = remat_runs_position(&used_runs, block);
  int ours = at < used_runs.count && used_runs.runs[at].start == (char *)block;
  if (ours) {
    Run run = used_runs.runs[at];
    remat_runs_erase(&used_runs, at);
    note_freed(run.number);
    keep(run);
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

/* Gives all free pages back to the system, and begins to learn anew. */
void remat_page_pool_trim(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = free_runs.count; i-- > 0;) unmap(i);
  highest_bytes = held_bytes - free_bytes;
  rest = FIRST_REST;
  rest_until = 0;
  forget_plan();
  pthread_mutex_unlock(&lock);
}
