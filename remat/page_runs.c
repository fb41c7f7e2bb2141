#include "page_runs.h"

#include <stdlib.h>
#include <string.h>

size_t remat_runs_position(const Runs *list, const char *start) {
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

int remat_runs_reserve(Runs *list, size_t more) {
  if (list->count + more <= list->room) return 1;
  size_t room = 2 * list->room + more + 64;
  Run *grown = realloc(list->runs, room * sizeof(Run));
  if (!grown) return 0;
  list->runs = grown;
  list->room = room;
  return 1;
}

void remat_runs_insert(Runs *list, size_t at, Run run) {
  memmove(list->runs + at + 1, list->runs + at, (list->count - at) * sizeof(Run));
  list->runs[at] = run;
  list->count++;
}

void remat_runs_erase(Runs *list, size_t at) {
  list->count--;
  memmove(list->runs + at, list->runs + at + 1, (list->count - at) * sizeof(Run));
}

size_t remat_runs_smallest(const Runs *list) {
  size_t best = 0;
  for (size_t i = 1; i < list->count; i++)
    if (list->runs[i].bytes < list->runs[best].bytes) best = i;
  return best;
}

size_t remat_runs_largest(const Runs *list) {
  size_t best = 0;
  for (size_t i = 1; i < list->count; i++)
    if (list->runs[i].bytes > list->runs[best].bytes) best = i;
  return best;
}

size_t remat_runs_fitting(const Runs *list, size_t bytes) {
  size_t best = list->count;
  for (size_t i = 0; i < list->count; i++) {
    size_t length = list->runs[i].bytes;
    if (length >= bytes && (best == list->count || length < list->runs[best].bytes)) best = i;
  }
  return best;
}

int remat_runs_carve(Runs *list, char *start, size_t bytes) {
  size_t at = remat_runs_position(list, start);
  if (at == list->count || list->runs[at].start > start) {
    if (!at) return 0;
    at--;
  }
  Run *run = list->runs + at;
  if (start + bytes > run->start + run->bytes) return 0;
  Run behind = {start + bytes, (size_t)(run->start + run->bytes - start) - bytes, 0};
  run->bytes = (size_t)(start - run->start);
  if (behind.bytes) remat_runs_insert(list, at + 1, behind);
  if (!list->runs[at].bytes) remat_runs_erase(list, at);
  return 1;
}
