/* Finds libc's functions in libc's symbol tables, because a program or a library may have functions of the same names,
 * which must not get the limiter's calls.
 */
#include "libc.h"

#include "fault.h"

#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

/* glibc consisted of these libraries until 2.34 moved all of it into libc.so. If two have a function, that of the first
 * is complete. */
static const char *const libc_libraries[] = {"libpthread.so.", "libc.so.", "libdl.so."};

/* A version that is there for old programs only (elf.h has no name for it). */
#define HIDDEN_VERSION 0x8000u

/* Written without libc, whose functions are not found yet. */
static bool has_prefix(const char *prefix, const char *text)
{
    while (*prefix != '\0' && *prefix == *text)
        prefix++, text++;
    return *prefix == '\0';
}

bool same_text(const char *left, const char *right)
{
    while (*left != '\0' && *left == *right)
        left++, right++;
    return *left == *right;
}

static const char *file_of(const struct link_map *object)
{
    const char *file_name = object->l_name;
    for (const char *cursor = file_name; *cursor != '\0'; cursor++)
        if (*cursor == '/')
            file_name = cursor + 1;
    return file_name;
}

/* The tables of a loaded object that its dynamic section points to. */
struct dynamic_tables {
    const ElfW(Sym) * symbols;
    const char *strings; /* the names of the symbols, one after the other */
    const uint32_t *gnu_hash;
    const uint16_t *versions; /* by symbol; NULL: symbols have no versions */
    const char *soname;       /* NULL: the object has none */
};

/* `load_address` is added to addresses that are not relocated yet. False: the object has no symbol table. */
static bool read_dynamic(const ElfW(Dyn) * entry, uintptr_t load_address, struct dynamic_tables *tables)
{
    uint64_t soname_offset = 0;
    *tables = (struct dynamic_tables){0};
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        uintptr_t value = entry->d_un.d_ptr;
        const void *address = (const void *)(value < load_address ? value + load_address : value);
        switch (entry->d_tag) {
        case DT_SYMTAB: tables->symbols = address; break;
        case DT_STRTAB: tables->strings = address; break;
        case DT_GNU_HASH: tables->gnu_hash = address; break;
        case DT_VERSYM: tables->versions = address; break;
        case DT_SONAME: soname_offset = value; break;
        default: break;
        }
    }
    if (tables->strings != NULL && soname_offset != 0)
        tables->soname = tables->strings + soname_offset;
    return tables->strings != NULL && tables->symbols != NULL && tables->gnu_hash != NULL;
}

static bool read_tables(const struct link_map *object, struct dynamic_tables *tables)
{
    return read_dynamic(object->l_ld, object->l_addr, tables);
}

static const ElfW(Sym) * find_symbol(const struct dynamic_tables *tables, const char *name, bool is_hidden)
{
    uint32_t hash = 5381;
    for (const char *cursor = name; *cursor != '\0'; cursor++)
        hash = hash * 33 + (unsigned char)*cursor;
    const uint32_t *hash_table = tables->gnu_hash;
    uint32_t bucket_count = hash_table[0], first_symbol = hash_table[1], bloom_word_count = hash_table[2];
    const uint32_t *buckets = hash_table + 4 + bloom_word_count * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain_hashes = buckets + bucket_count;
    for (uint32_t symbol_index = buckets[hash % bucket_count]; symbol_index >= first_symbol; symbol_index++) {
        const ElfW(Sym) *symbol = &tables->symbols[symbol_index];
        bool has_hidden_version = tables->versions != NULL && (tables->versions[symbol_index] & HIDDEN_VERSION) != 0;
        if ((chain_hashes[symbol_index - first_symbol] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            has_hidden_version == is_hidden && same_text(tables->strings + symbol->st_name, name))
            return symbol;
        if (chain_hashes[symbol_index - first_symbol] & 1)
            break;
    }
    return NULL;
}

static void *address_of(const struct link_map *object, const ElfW(Sym) * symbol)
{
    void *address = (void *)(object->l_addr + symbol->st_value);
    if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC)
        address = ((void *(*)(void))address)(); /* the resolver returns the variant for this processor */
    return address;
}

extern void _dl_mcount(uintptr_t from, uintptr_t self);

/* The loader's list of loaded objects, found in the loader's own symbol table. A program that refers to _r_debug has a
 * copy of it, which is empty until the program is relocated. The loader itself is found by a function that no program
 * has. */
static const struct link_map *loaded_objects(void)
{
    uintptr_t load_address = (uintptr_t)_dl_mcount & ~(uintptr_t)0xfff;
    while (*(const uint32_t *)load_address != 0x464c457f) /* ELF's first bytes, on the first page */
        load_address -= 0x1000;
    const ElfW(Ehdr) *header = (const void *)load_address;
    const ElfW(Phdr) *segment = (const void *)(load_address + header->e_phoff);
    while (segment->p_type != PT_DYNAMIC)
        segment++;
    struct dynamic_tables tables;
    const ElfW(Sym) *symbol = NULL;
    if (read_dynamic((const void *)(load_address + segment->p_vaddr), load_address, &tables))
        symbol = find_symbol(&tables, "_r_debug", false);
    return symbol == NULL ? NULL : ((const struct r_debug *)(load_address + symbol->st_value))->r_map;
}

static void *function_of_libraries(const char *library_prefix, const char *name, bool is_hidden)
{
    for (const struct link_map *object = loaded_objects(); object != NULL; object = object->l_next) {
        struct dynamic_tables tables;
        if (!has_prefix(library_prefix, file_of(object)) || !read_tables(object, &tables))
            continue;
        const ElfW(Sym) *symbol = find_symbol(&tables, name, is_hidden);
        if (symbol != NULL)
            return address_of(object, symbol);
    }
    return NULL;
}

/* ThreadSanitizer's functions stand in front of libc's. A thread that it did not start ends the program at the first of
 * these that the driver calls there. */
static const char thread_sanitizer[] = "libtsan.so.";

static void *libc_function(const char *name)
{
    void *function = same_text(name, "pthread_create") ? function_of_libraries(thread_sanitizer, name, false) : NULL;
    for (unsigned is_hidden = 0; is_hidden < 2; is_hidden++)
        for (unsigned library = 0; library < sizeof libc_libraries / sizeof *libc_libraries && function == NULL;
             library++)
            function = function_of_libraries(libc_libraries[library], name, is_hidden);
    return function;
}

const struct link_map *object_of(const void *address)
{
    Dl_info info;
    struct link_map *object = NULL;
    return address != NULL && libc_dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) != 0 ? object : NULL;
}

bool object_is_called(const struct link_map *object, const char *name)
{
    struct dynamic_tables tables;
    return object != NULL && read_tables(object, &tables) && tables.soname != NULL && same_text(tables.soname, name);
}

/* ----------------------------------------------------------------------------------------------- targets of --wrap */

/* The loader calls these resolvers as it loads the limiter, before any code of the program or of a library runs. */
#define FOUND(name) __attribute__((ifunc("find_" #name), visibility("hidden")))
#define LIBC(name)                                                                                                     \
    static void (*find_##name(void))(void)                                                                             \
    {                                                                                                                  \
        return (void (*)(void))(FAULT(libc_by_search_order) ? function_of_libraries("", #name, false)                  \
                                                            : libc_function(#name));                                   \
    }                                                                                                                  \
    void __wrap_##name(void) FOUND(name);
#include "libc.def"

static void *(*find_dlsym(void))(void *, const char *)
{
    return (void *(*)(void *, const char *))libc_function("dlsym");
}
static void *(*find_dlvsym(void))(void *, const char *, const char *)
{
    return (void *(*)(void *, const char *, const char *))libc_function("dlvsym");
}
static void *(*find_dlopen(void))(const char *, int)
{
    return (void *(*)(const char *, int))libc_function("dlopen");
}
void *libc_dlsym(void *handle, const char *name) FOUND(dlsym);
void *libc_dlvsym(void *handle, const char *name, const char *version) FOUND(dlvsym);
void *libc_dlopen(const char *file, int flags) FOUND(dlopen);

static int (*find_dladdr(void))(const void *, Dl_info *)
{
    return (int (*)(const void *, Dl_info *))libc_function("dladdr");
}
static int (*find_dladdr1(void))(const void *, Dl_info *, void **, int)
{
    return (int (*)(const void *, Dl_info *, void **, int))libc_function("dladdr1");
}
int libc_dladdr(const void *address, Dl_info *info) FOUND(dladdr);
int libc_dladdr1(const void *address, Dl_info *info, void **extra, int flags) FOUND(dladdr1);
