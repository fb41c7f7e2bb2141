/* Counts what a process allocates: the live and the peak bytes of the C allocator.
 *
 * Loaded with LD_PRELOAD, these functions stand before those of the C library and hand every call
 * on to it. A block counts with its usable size, which is what the allocator took from the heap
 * for it, rounding included. What is mapped behind the allocator's back (files, thread stacks)
 * is not counted. glibc only: the allocator behind is reached by its __libc_ names, which need
 * no dlsym, a function that itself allocates.
 *
 * All counters are bytes, exact and safe to read from any thread.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

static atomic_llong live_bytes;
static atomic_llong peak_bytes;

/* Enter a new block, which may be NULL: then the allocation failed and nothing is counted. */
static void *enter(void *block)
{
    if (block == NULL)
        return NULL;
    long long size = (long long)malloc_usable_size(block);
    long long live = atomic_fetch_add(&live_bytes, size) + size;
    long long peak = atomic_load(&peak_bytes);
    /* Another thread may raise the peak meanwhile; a failed exchange loads what it wrote. */
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live))
        ;
    return block;
}

/* A size must be taken while the block is still ours, hence before it is given back. */
static void leave(long long size)
{
    atomic_fetch_sub(&live_bytes, size);
}

void *malloc(size_t size)
{
    return enter(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return enter(__libc_calloc(count, size));
}

void free(void *block)
{
    if (block == NULL)
        return;
    leave((long long)malloc_usable_size(block));
    __libc_free(block);
}

/* The old and the new block count as one: the kernel moves large blocks without a copy. */
void *realloc(void *block, size_t size)
{
    long long before = block == NULL ? 0 : (long long)malloc_usable_size(block);
    void *moved = __libc_realloc(block, size);
    /* On failure the old block stays; with size 0 glibc frees it and answers NULL as well. */
    if (moved != NULL || size == 0)
        leave(before);
    return enter(moved);
}

void *memalign(size_t alignment, size_t size)
{
    return enter(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return enter(__libc_memalign(alignment, size));
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
    int is_power_of_two = alignment != 0 && (alignment & (alignment - 1)) == 0;
    if (!is_power_of_two || alignment % sizeof(void *) != 0)
        return EINVAL;
    void *block = enter(__libc_memalign(alignment, size));
    if (block == NULL)
        return ENOMEM;
    *result = block;
    return 0;
}

/* What is live now is the peak so far. */
void malloc_hook_reset(void)
{
    atomic_store(&peak_bytes, atomic_load(&live_bytes));
}

long long malloc_hook_live(void)
{
    return atomic_load(&live_bytes);
}

/* The most that was live at once since the last reset. */
long long malloc_hook_peak(void)
{
    return atomic_load(&peak_bytes);
}
