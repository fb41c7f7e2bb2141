/* A block of `bytes` from the page pool, NULL where there is none; see page_pool.c. */
#ifndef REMAT_PAGE_POOL_H
#define REMAT_PAGE_POOL_H

#include <stddef.h>

void *remat_page_pool_take(size_t bytes);
void remat_page_pool_put_back(void *block);

#endif
