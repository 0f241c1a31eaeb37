/* dlsym, dlvsym and dlopen as this process sees them, and the real ones for ourselves.
 *
 * Ours answer a name of ours with our function when the handle has that symbol, and jump to the real function for
 * everything else: a jump, because the real one looks at its return address to know who asks (RTLD_NEXT, run paths).
 */
#include "symbols.h"

#include "tenant.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

/* libc's own; looked up on first use, every thread that writes it writes the same. */
static _Atomic(void *) libc_dlsym, libc_dlvsym, libc_dlopen;

/* ------------------------------------------------------------------------------------------------- libc's functions */

/* What a plain dlsym would find is our own function, so libc's is read from its symbol table. */
struct search {
    const char *name;
    void *found;
};

/* Whether `text` begins with `start`, or is the same. Not libc's functions: a library in front of those (a
 * sanitizer) may be looking for them through us right now. */
static bool begins(const char *start, const char *text)
{
    while (*start != '\0' && *start == *text)
        start++, text++;
    return *start == '\0';
}

static bool same(const char *one, const char *other)
{
    while (*one != '\0' && *one == *other)
        one++, other++;
    return *one == *other;
}

static const ElfW(Sym) *
    look_up(const ElfW(Sym) * symbols, const char *strings, const uint32_t *gnu_hash, const char *name)
{
    uint32_t hash = 5381;
    for (const char *at = name; *at != '\0'; at++)
        hash = hash * 33 + (unsigned char)*at;
    uint32_t buckets = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2];
    const uint32_t *bucket = gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        const ElfW(Sym) *symbol = &symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            same(strings + symbol->st_name, name))
            return symbol;
        if (chain[i - first] & 1)
            break;
    }
    return NULL;
}

static int search_object(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct search *search = argument;
    (void)size;
    const char *file = object->dlpi_name;
    for (const char *at = file; *at != '\0'; at++)
        if (*at == '/')
            file = at + 1;
    if (!begins("libc.so.", file) && !begins("libdl.so.", file))
        return 0;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *gnu_hash = NULL;
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        /* glibc has relocated these addresses in place. */
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const void *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRTAB)
            strings = (const void *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_GNU_HASH)
            gnu_hash = (const void *)dynamic->d_un.d_ptr;
    }
    if (symbols == NULL || strings == NULL || gnu_hash == NULL)
        return 0;
    const ElfW(Sym) *symbol = look_up(symbols, strings, gnu_hash, search->name);
    if (symbol == NULL)
        return 0;
    search->found = (void *)(object->dlpi_addr + symbol->st_value);
    return 1;
}

static void *libc_function(_Atomic(void *) *known, const char *name)
{
    void *function = atomic_load_explicit(known, memory_order_acquire);
    if (function == NULL) {
        struct search search = {.name = name};
        dl_iterate_phdr(search_object, &search);
        function = search.found;
        atomic_store_explicit(known, function, memory_order_release);
    }
    return function;
}

static void *real_dlsym(void *handle, const char *name)
{
    return ((dlsym_function)libc_function(&libc_dlsym, "dlsym"))(handle, name);
}

/* ------------------------------------------------------------------------------------------------------- our tables */

/* What the linker puts around this library and around the section of its tables (SYMBOLS). */
#define HIDDEN __attribute__((visibility("hidden")))
extern const char __ehdr_start[] HIDDEN, _end[] HIDDEN;
extern const struct symbols *const __start_hetero_symbols[] HIDDEN;
extern const struct symbols *const __stop_hetero_symbols[] HIDDEN;

static bool is_of_this_library(const void *function)
{
    return (uintptr_t)function >= (uintptr_t)__ehdr_start && (uintptr_t)function < (uintptr_t)_end;
}

void *symbol_resolve(const char *library, struct symbol *row)
{
    /* No lock of ours around the loader's: a second thread finds the same. The handle is kept for good. */
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        handle = dlopen(library, RTLD_LAZY);
    void *real = handle == NULL ? NULL : real_dlsym(handle, row->name);
    if (is_of_this_library(real))
        real = NULL; /* the name is ours alone: never call ourselves */
    atomic_store_explicit(&row->real, real, memory_order_release);
    return real;
}

/* The table and the row of what we answer under this name. */
struct place {
    const struct symbols *table;
    size_t row;
};

static bool find_ours(const char *name, struct place *place)
{
    for (const struct symbols *const *at = __start_hetero_symbols; at < __stop_hetero_symbols; at++)
        for (size_t row = 0; row < (*at)->count; row++)
            if ((*at)->ours[row] != NULL && same((*at)->rows[row].name, name)) {
                *place = (struct place){*at, row};
                return true;
            }
    return false;
}

/* ------------------------------------------------------------------------------------------------- the entry points */

/* What the stubs below do next: return `answer`, or jump to `pass` with the caller's arguments and return address. */
struct lookup {
    void *answer;
    void *pass;
};

__attribute__((used, visibility("hidden"))) struct lookup hetero_look_up(void *handle, const char *name,
                                                                         const char *version, long versioned)
{
    void *pass = versioned ? libc_function(&libc_dlvsym, "dlvsym") : libc_function(&libc_dlsym, "dlsym");
    struct place place;
    if (name == NULL || !find_ours(name, &place) || tenancy() == TENANCY_FREE)
        return (struct lookup){NULL, pass};
    const char *library = place.table->library;
    struct symbol *row = &place.table->rows[place.row];
    void *ours = place.table->ours[place.row];
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
        /* Our functions are always found there; the caller wants to know whether the driver is loaded. */
        if (dlopen(library, RTLD_LAZY | RTLD_NOLOAD) != NULL && symbol_real(library, row) != NULL)
            return (struct lookup){ours, NULL};
        return (struct lookup){real_dlsym(RTLD_NEXT, name), NULL};
    }
    void *found = versioned ? ((dlvsym_function)pass)(handle, name, version) : ((dlsym_function)pass)(handle, name);
    if (found == ours && symbol_real(library, row) == NULL)
        found = NULL;
    return (struct lookup){found == NULL ? NULL : ours, NULL};
}

/* What dlopen's stub does next: jump to `pass`, with the caller's flags but for those not in `flags`. */
struct opening {
    void *pass;
    long flags;
};

/* A library that looks for names in itself and what it was linked to before everything else would find the driver's. */
__attribute__((used, visibility("hidden"))) struct opening hetero_open(const char *file, int flags)
{
    (void)file;
    bool past_us = (flags & RTLD_DEEPBIND) != 0 && tenancy() != TENANCY_FREE;
    return (struct opening){libc_function(&libc_dlopen, "dlopen"), past_us ? ~(long)RTLD_DEEPBIND : -1L};
}

#if defined(__x86_64__)
#define ENTRY_POINT(name, versioned)                                                                                   \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                                        \
            "  push %rdi\n  push %rsi\n  push %rdx\n"                                                                  \
            "  mov $" #versioned ", %ecx\n"                                                                            \
            "  call hetero_look_up\n"                                                                                  \
            "  mov %rdx, %rcx\n"                                                                                       \
            "  pop %rdx\n  pop %rsi\n  pop %rdi\n"                                                                     \
            "  test %rcx, %rcx\n  jz 1f\n  jmp *%rcx\n1: ret\n"                                                        \
            ".size " #name ", . - " #name "\n")
__asm__(".text\n.globl dlopen\n.type dlopen, @function\ndlopen:\n"
        "  push %rdi\n  push %rsi\n  sub $8, %rsp\n"
        "  call hetero_open\n"
        "  add $8, %rsp\n  pop %rsi\n  pop %rdi\n"
        "  and %edx, %esi\n  jmp *%rax\n"
        ".size dlopen, . - dlopen\n");
#elif defined(__aarch64__)
#define ENTRY_POINT(name, versioned)                                                                                   \
    __asm__(".text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n"                                        \
            "  stp x29, x30, [sp, #-48]!\n  mov x29, sp\n"                                                             \
            "  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"                                                           \
            "  mov x3, #" #versioned "\n"                                                                              \
            "  bl hetero_look_up\n"                                                                                    \
            "  mov x16, x1\n  cbz x16, 1f\n"                                                                           \
            "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"                                                           \
            "1: ldp x29, x30, [sp], #48\n  cbz x16, 2f\n  br x16\n2: ret\n"                                            \
            ".size " #name ", . - " #name "\n")
__asm__(".text\n.globl dlopen\n.type dlopen, %function\ndlopen:\n"
        "  stp x29, x30, [sp, #-32]!\n  mov x29, sp\n"
        "  stp x0, x1, [sp, #16]\n"
        "  bl hetero_open\n"
        "  mov x16, x0\n  mov x17, x1\n"
        "  ldp x0, x1, [sp, #16]\n  ldp x29, x30, [sp], #32\n"
        "  and w1, w1, w17\n  br x16\n"
        ".size dlopen, . - dlopen\n");
#endif

ENTRY_POINT(dlsym, 0);
ENTRY_POINT(dlvsym, 1);
