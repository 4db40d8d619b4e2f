/* malloc for training on the processor: as exact as mapping every large block by itself, and as fast as keeping them.
 *
 * A block of 64 KiB or more is a mapping of its own. When it is freed it stays mapped and serves a later one, for a
 * fresh mapping costs a page fault for each page, a fifth to two fifths of a training step's time. What is kept
 * never makes the process larger than it has been: blocks in use and kept ones together take at most what blocks in use
 * alone took at their peak. So the peak of what RLIMIT_DATA limits (VmData) is the one of a process that gives every
 * block back at once, and a request is refused where that process's would be. The peak of pages in memory (VmHWM) is
 * larger where a program takes memory that it does not touch: a fresh mapping has no pages then, a block that served
 * before has. On a GPU such memory is taken, too.
 *
 * All else, smaller blocks and larger alignments, is glibc's. Preloaded (LD_PRELOAD); Linux with glibc alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

#define LEAST ((size_t)1 << 16) /* bytes of a block that is mapped by itself: MALLOC_MMAP_THRESHOLD_ of devices/cpu.py */
#define OFFSET ((size_t)64)     /* of a block's first byte in its mapping, behind the header: what torch aligns to */
#define BINS 1024
#define KEY ((uintptr_t)0x9e3779b97f4a7c15u)

/* The header at the start of each mapping. */
typedef struct Block {
    uintptr_t check; /* KEY, changed by where the block lies, while it is in use: no other memory holds that by chance */
    size_t length;   /* bytes of the mapping */
    struct Block *newer, *older;    /* of those that are kept: in the order in which they were freed */
    struct Block *next, *previous;  /* and of about one length */
} Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block *bins[BINS], *newest, *oldest; /* the blocks that are kept */
static size_t in_use, kept, peak;           /* bytes of mappings; the peak is that of in_use */
static size_t page;

static size_t page_size(void) {
    if (!page) page = (size_t)getpagesize();
    return page;
}

static uintptr_t check_of(const Block *block) { return (uintptr_t)block ^ KEY; }

/* Returns the mapping of a pointer that `allocate` gave, null for one of glibc's. */
static Block *block_of(void *pointer) {
    if (((uintptr_t)pointer & (page_size() - 1)) != OFFSET) return NULL;
    Block *block = (Block *)((char *)pointer - OFFSET); /* in the same page, so there is something to read */
    return block->check == check_of(block) ? block : NULL;
}

static Block **bin_of(size_t length) { return &bins[length / page_size() % BINS]; }

static void keep(Block *block) {
    Block **bin = bin_of(block->length);
    block->check = 0; /* freed once more, it is glibc's, which tells */
    block->newer = NULL;
    block->older = newest;
    *(newest ? &newest->newer : &oldest) = block;
    newest = block;
    block->previous = NULL;
    block->next = *bin;
    if (*bin) (*bin)->previous = block;
    *bin = block;
    kept += block->length;
}

static void unkeep(Block *block) {
    *(block->newer ? &block->newer->older : &newest) = block->older;
    *(block->older ? &block->older->newer : &oldest) = block->newer;
    *(block->previous ? &block->previous->next : bin_of(block->length)) = block->next;
    if (block->next) block->next->previous = block->previous;
    kept -= block->length;
}

/* Gives the oldest kept blocks back until at most so many bytes are kept. */
static void give_back(size_t most) {
    while (kept > most) {
        Block *block = oldest;
        unkeep(block);
        munmap(block, block->length);
    }
}

/* Returns what may be kept once `more` bytes are in use beyond those that are. */
static size_t may_keep(size_t more) { return peak > in_use + more ? peak - in_use - more : 0; }

static void count(size_t more) {
    in_use += more;
    if (in_use > peak) peak = in_use;
}

/* Maps so many bytes, or makes `block` as long; gives all back that is kept where the kernel refuses, and tries again. */
static void *map(Block *block, size_t length) {
    for (;;) {
        void *got = block ? mremap(block, block->length, length, MREMAP_MAYMOVE)
                          : mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got != MAP_FAILED) return got;
        if (!kept) return NULL;
        give_back(0);
    }
}

/* Returns the kept block that wastes least for a mapping of so many bytes, null where none is as long. */
static Block *fitting(size_t length) {
    Block *found = NULL;
    for (Block *block = *bin_of(length); block; block = block->next)
        if (block->length == length) return block;
    for (Block *block = newest; block; block = block->older)
        if (block->length > length && (!found || block->length < found->length)) found = block;
    return found;
}

/* Returns a block of so many bytes, null with ENOMEM; `fresh` tells whether they are zeros. */
static void *allocate(size_t size, int *fresh) {
    size_t length = (size + OFFSET + page_size() - 1) & ~(page_size() - 1);
    Block *block = NULL;
    *fresh = 0;
    if (length > size) {
        pthread_mutex_lock(&lock);
        block = fitting(length);
        if (block) {
            unkeep(block);
            if (block->length - length >= LEAST) { /* the rest serves another */
                Block *rest = (Block *)((char *)block + length);
                rest->length = block->length - length;
                block->length = length;
                keep(rest);
            } else if (block->length > length) {
                munmap((char *)block + length, block->length - length);
            }
        } else {
            /* Where something must be given back for it, the oldest kept block's pages serve. */
            Block *grown = kept > may_keep(length) ? oldest : NULL;
            if (grown) unkeep(grown);
            give_back(may_keep(length));
            block = map(grown, length);
            if (!block && grown) munmap(grown, grown->length);
            *fresh = !grown;
        }
        if (block) {
            block->length = length;
            block->check = check_of(block);
            count(length);
        }
        pthread_mutex_unlock(&lock);
    }
    if (block) return (char *)block + OFFSET;
    errno = ENOMEM;
    return NULL;
}

/* Gives back all that is kept, and lets the peak begin anew. For who reads the kernel's counts. */
void autotune_give_back(void) {
    pthread_mutex_lock(&lock);
    give_back(0);
    peak = in_use;
    pthread_mutex_unlock(&lock);
}

/* Returns whether giving back may help a request that glibc was refused. */
static int gave_back(void) {
    pthread_mutex_lock(&lock);
    int had = kept > 0;
    give_back(0);
    pthread_mutex_unlock(&lock);
    return had;
}

void *malloc(size_t size) {
    int fresh;
    if (size >= LEAST) return allocate(size, &fresh);
    void *got = __libc_malloc(size);
    return got || !gave_back() ? got : __libc_malloc(size);
}

void *calloc(size_t number, size_t each) {
    size_t size;
    int fresh;
    if (__builtin_mul_overflow(number, each, &size) || size < LEAST) {
        void *got = __libc_calloc(number, each);
        return got || !gave_back() ? got : __libc_calloc(number, each);
    }
    void *got = allocate(size, &fresh);
    return got && !fresh ? memset(got, 0, size) : got;
}

void *memalign(size_t alignment, size_t size) {
    int fresh;
    if (size >= LEAST && alignment <= OFFSET) return allocate(size, &fresh);
    void *got = __libc_memalign(alignment, size);
    return got || !gave_back() ? got : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **pointer, size_t alignment, size_t size) {
    int before = errno;
    if (!alignment || alignment % sizeof(void *) || alignment & (alignment - 1)) return EINVAL;
    void *got = memalign(alignment, size);
    errno = before;
    if (!got) return ENOMEM;
    *pointer = got;
    return 0;
}

void free(void *pointer) {
    Block *block = pointer ? block_of(pointer) : NULL;
    if (!block) {
        __libc_free(pointer);
        return;
    }
    pthread_mutex_lock(&lock);
    in_use -= block->length;
    keep(block);
    pthread_mutex_unlock(&lock);
}

/* Makes a block longer or shorter where it is, or moves its pages, as glibc does with its mappings. */
static void *resized(Block *block, size_t size) {
    size_t had = block->length, length = (size + OFFSET + page_size() - 1) & ~(page_size() - 1);
    if (length == had) return (char *)block + OFFSET;
    Block *got = NULL;
    if (length > size) {
        pthread_mutex_lock(&lock);
        if (length > had) give_back(may_keep(length - had));
        got = map(block, length);
        if (got) {
            got->length = length;
            got->check = check_of(got);
            in_use -= had;
            count(length);
        }
        pthread_mutex_unlock(&lock);
    }
    if (got) return (char *)got + OFFSET;
    errno = ENOMEM;
    return NULL;
}

void *realloc(void *pointer, size_t size) {
    Block *block = pointer ? block_of(pointer) : NULL;
    if (!block) {
        void *got = __libc_realloc(pointer, size);
        return got || !size || !gave_back() ? got : __libc_realloc(pointer, size);
    }
    if (size >= LEAST) return resized(block, size);
    void *got = size ? malloc(size) : NULL;
    if (got) memcpy(got, pointer, size);
    if (got || !size) free(pointer);
    return got;
}

size_t malloc_usable_size(void *pointer) {
    static size_t (*of_glibc)(void *);
    Block *block = pointer ? block_of(pointer) : NULL;
    if (block) return block->length - OFFSET;
    if (!of_glibc) of_glibc = (size_t(*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    return of_glibc(pointer);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, after_fork, after_fork); }
