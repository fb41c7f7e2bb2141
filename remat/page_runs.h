/* Lists of runs of pages, sorted by address. */
#ifndef REMAT_PAGE_RUNS_H
#define REMAT_PAGE_RUNS_H

#include <stddef.h>

/* `number` is that of the block in a used run: blocks are counted as they are taken. */
typedef struct {
  char *start;
  size_t bytes, number;
} Run;

typedef struct {
  Run *runs;
  size_t count, room;
} Runs;

/* The index of the first run that starts at `start` or later. */
size_t remat_runs_position(const Runs *list, const char *start);

/* The index of a run of the fewest, or the most, pages; 0 in an empty list. */
size_t remat_runs_smallest(const Runs *list);
size_t remat_runs_largest(const Runs *list);

/* The index of the shortest run of `bytes` or more; the count where there is none. */
size_t remat_runs_fitting(const Runs *list, size_t bytes);

/* Makes room for `more` runs; whether there is. */
int remat_runs_reserve(Runs *list, size_t more);

/* Room was made before. */
void remat_runs_insert(Runs *list, size_t at, Run run);
void remat_runs_erase(Runs *list, size_t at);

/* Takes these pages out of the run that has them all, which leaves up to two; whether one has. */
int remat_runs_carve(Runs *list, char *start, size_t bytes);

#endif
