/* Places for blocks whose sequence repeats; see page_plan.c. */
#ifndef REMAT_PAGE_PLAN_H
#define REMAT_PAGE_PLAN_H

#include <stddef.h>
#include <stdint.h>

/* A block of some pages that is freed when `life` blocks, itself included, have been taken since;
 * 0 while it is in use. A plan puts it `offset` pages behind the start of its region. */
typedef struct {
  uint32_t pages, life, offset;
} Block;

/* A cycle of blocks, the first of which is the next to be taken. Fewest pages are in use when the
 * block at `quiet` is about to be. */
typedef struct {
  Block *blocks;
  size_t count, height, quiet;
} Plan;

/* The smallest number of blocks after which the later half of the log repeats, at most a quarter
 * of `count`; 0 where there is none. */
size_t remat_plan_period(const Block *log, size_t count);

/* A plan for the last `period` blocks of the log that takes `most_pages` or fewer; its count is 0
 * where none was found. The caller frees its blocks. */
Plan remat_plan_make(const Block *log, size_t count, size_t period, size_t most_pages);

#endif
