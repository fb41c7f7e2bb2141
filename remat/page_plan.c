/* Learns the sequence of blocks that a model takes and frees in every run, and lays them out so
 * that blocks in use at the same time lie apart and all fit into as few pages as are in use at
 * the peak.
 *
 * The layout is dynamic storage allocation (Garey and Johnson 1979, problem SR2). As in Pisarchyk
 * and Lee (2020, "greedy by size") blocks are placed one by one into the smallest gap that holds
 * them; unlike there the order is improved by a local search, and lives are arcs of a cycle, so
 * that a block may outlive the run that made it (an output that the caller keeps). The work is
 * counted, not timed, and the numbers drawn are the same in every process.
 */
#define _GNU_SOURCE
#include "page_plan.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BLOCKS 4096u
/* Blocks looked at in a search: some 50 ms, once. */
#define MOST_STEPS 30000000u
#define LONGEST_SHIFT 30u

/* ---- the period ---- */

/* reach[i]: how many of the last blocks are those taken i blocks earlier (the Z function of the
 * log, read backwards; Gusfield 1997, section 1.4). */
static void repeats(const Block *log, size_t count, uint32_t *reach) {
  const Block *last = log + count - 1;
  size_t left = 0, right = 0;
  for (size_t i = 1; i < count; i++) {
    size_t known = i < right ? right - i : 0;
    size_t length = known && reach[i - left] < known ? reach[i - left] : known;
    while (i + length < count && last[-(ptrdiff_t)length].pages == last[-(ptrdiff_t)(i + length)].pages)
      length++;
    if (i + length > right) left = i, right = i + length;
    reach[i] = (uint32_t)length;
  }
}

size_t remat_plan_period(const Block *log, size_t count) {
  uint32_t *reach = count ? malloc(count * sizeof *reach) : NULL;
  size_t found = 0;
  if (!reach) return 0;
  repeats(log, count, reach);
  for (size_t i = 1; i <= count / 4 && !found; i++)
    if (reach[i] >= count / 2) found = i;
  free(reach);
  return found;
}

/* ---- the cycle ---- */

/* The life of the log's block at `at`, or that of the same block one period earlier where it is
 * still in use; 0 where both are. */
static uint32_t life_of(const Block *log, size_t at, size_t period) {
  return log[at].life ? log[at].life : log[at - period].life;
}

/* One cycle: as many periods as keep each life shorter than the cycle. Lives are those of the
 * period before the last, which has ended by now. */
static Plan cycle_of(const Block *log, size_t count, size_t period) {
  Plan plan = {NULL, 0, 0, 0};
  size_t first = count - 2 * period, longest = 0;
  for (size_t i = 0; i < period; i++) {
    uint32_t life = life_of(log, first + i, period);
    if (!life) return plan;
    if (life > longest) longest = life;
  }
  size_t periods = longest / period + 1;
  if (periods * period > MOST_BLOCKS) return plan;
  plan.blocks = malloc(periods * period * sizeof(Block));
  if (!plan.blocks) return plan;
  plan.count = periods * period;
  for (size_t i = 0; i < plan.count; i++) {
    size_t at = first + i % period;
    plan.blocks[i] = (Block){log[at].pages, life_of(log, at, period), 0};
  }
  return plan;
}

static void find_quiet(Plan *plan) {
  size_t least = SIZE_MAX;
  for (size_t now = 0; now < plan->count; now++) {
    size_t used = 0;
    for (size_t i = 0; i < plan->count; i++) {
      size_t age = now >= i ? now - i : now + plan->count - i;
      if (age && age < plan->blocks[i].life) used += plan->blocks[i].pages;
    }
    if (used < least) least = used, plan->quiet = now;
  }
}

/* ---- the layout ---- */

typedef struct {
  Block *blocks;
  size_t count, steps;
  /* Blocks placed so far, lowest first. */
  uint32_t *placed;
} Layout;

static int overlap(const Layout *layout, size_t one, size_t other) {
  const Block *a = layout->blocks + one, *b = layout->blocks + other;
  size_t later = other >= one ? other - one : other + layout->count - one;
  return later < a->life || layout->count - later < b->life;
}

/* The start of the smallest gap that holds a block, between the placed ones in use with it. */
static uint32_t best_gap(const Layout *layout, size_t placed, size_t block) {
  uint32_t pages = layout->blocks[block].pages, smallest = UINT32_MAX, found = 0, free_from = 0;
  for (size_t i = 0; i < placed; i++) {
    const Block *other = layout->blocks + layout->placed[i];
    if (!overlap(layout, block, layout->placed[i])) continue;
    if (other->offset >= free_from + pages && other->offset - free_from < smallest)
      smallest = other->offset - free_from, found = free_from;
    if (other->offset + other->pages > free_from) free_from = other->offset + other->pages;
  }
  return smallest == UINT32_MAX ? free_from : found;
}

/* Places the blocks in this order; the height. */
static size_t place(Layout *layout, const uint32_t *order) {
  size_t height = 0;
  for (size_t i = 0; i < layout->count; i++) {
    Block *block = layout->blocks + order[i];
    block->offset = best_gap(layout, i, order[i]);
    size_t at = i, top = (size_t)block->offset + block->pages;
    for (; at && layout->blocks[layout->placed[at - 1]].offset > block->offset; at--)
      layout->placed[at] = layout->placed[at - 1];
    layout->placed[at] = order[i];
    if (top > height) height = top;
    layout->steps += i + 1;
  }
  return height;
}

static int compare(uint64_t one, uint64_t other) { return (one < other) - (one > other); }

static int by_life(const void *one, const void *other, void *blocks) {
  const Block *a = (Block *)blocks + *(const uint32_t *)one;
  const Block *b = (Block *)blocks + *(const uint32_t *)other;
  int differ = compare(a->life, b->life);
  if (!differ) differ = compare(a->pages, b->pages);
  return differ ? differ : (a > b) - (a < b);
}

static int by_size(const void *one, const void *other, void *blocks) {
  const Block *a = (Block *)blocks + *(const uint32_t *)one;
  const Block *b = (Block *)blocks + *(const uint32_t *)other;
  int differ = compare(a->pages, b->pages);
  return differ ? differ : by_life(one, other, blocks);
}

static uint32_t draw(uint32_t *state, uint32_t below) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state % below;
}

/* Takes up to three blocks a few places forward or back in the order. */
static void disturb(uint32_t *order, size_t count, uint32_t *state) {
  for (uint32_t times = 1 + draw(state, 3); times; times--) {
    size_t from = draw(state, (uint32_t)count), shift = draw(state, 2 * LONGEST_SHIFT + 1);
    size_t to = from + shift < LONGEST_SHIFT ? 0 : from + shift - LONGEST_SHIFT;
    if (to >= count) to = count - 1;
    uint32_t block = order[from];
    if (from < to)
      memmove(order + from, order + from + 1, (to - from) * sizeof *order);
    else
      memmove(order + to + 1, order + to, (from - to) * sizeof *order);
    order[to] = block;
  }
}

/* Improves the order, worse ones excluded, until the blocks fit or the work is done. On return
 * they lie as in the last order tried; the height. */
static size_t climb(Layout *layout, uint32_t *best, uint32_t *order, size_t enough) {
  int (*rules[])(const void *, const void *, void *) = {by_life, by_size};
  size_t bytes = layout->count * sizeof *order, lowest = SIZE_MAX, height = SIZE_MAX;
  uint32_t state = 2463534242u;
  for (size_t i = 0; i < layout->count; i++) order[i] = (uint32_t)i;
  for (size_t tried = 0; height > enough && layout->steps < MOST_STEPS; tried++) {
    if (tried < sizeof rules / sizeof *rules) {
      qsort_r(order, layout->count, sizeof *order, rules[tried], layout->blocks);
    } else {
      memcpy(order, best, bytes);
      disturb(order, layout->count, &state);
    }
    height = place(layout, order);
    if (height <= lowest) {
      lowest = height;
      memcpy(best, order, bytes);
    }
  }
  return height;
}

Plan remat_plan_make(const Block *log, size_t count, size_t period, size_t most_pages) {
  Plan plan = cycle_of(log, count, period);
  if (!plan.count) return plan;
  uint32_t *room = malloc(3 * plan.count * sizeof *room);
  if (room) {
    Layout layout = {plan.blocks, plan.count, 0, room};
    plan.height = climb(&layout, room + plan.count, room + 2 * plan.count, most_pages);
    find_quiet(&plan);
  }
  if (!room || plan.height > most_pages) {
    free(plan.blocks);
    plan = (Plan){NULL, 0, 0, 0};
  }
  free(room);
  return plan;
}
