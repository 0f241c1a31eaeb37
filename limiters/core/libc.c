/* Finds libc's functions in its symbol tables: a program's or a library's functions of the same names must not answer
 * the limiter's calls.
 */
#include "libc.h"

#include "fault.h"

#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

/* glibc was these libraries until 2.34 put all of it into libc.so; where two have a function, the first has the whole
 * of it. */
static const char *const parts[] = {"libpthread.so.", "libc.so.", "libdl.so."};

/* A version that is there for old programs only (elf.h has no name for it). */
#define HIDDEN_VERSION 0x8000u

/* Whether `text` begins with `start`, or is the same. libc's functions are what is being looked for. */
static bool begins(const char *start, const char *text)
{
    while (*start != '\0' && *start == *text)
        start++, text++;
    return *start == '\0';
}

bool same_text(const char *one, const char *other)
{
    while (*one != '\0' && *one == *other)
        one++, other++;
    return *one == *other;
}

static const char *file_of(const struct link_map *object)
{
    const char *file = object->l_name;
    for (const char *at = file; *at != '\0'; at++)
        if (*at == '/')
            file = at + 1;
    return file;
}

/* What an object says of itself. */
struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint16_t *versions;
    const char *soname;
};

/* `base` is added to what is not relocated yet. False: it shows no symbols. */
static bool read_dynamic(const ElfW(Dyn) * dynamic, uintptr_t base, struct tables *tables)
{
    uint64_t soname = 0;
    *tables = (struct tables){0};
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = dynamic->d_un.d_ptr;
        const void *address = (const void *)(value < base ? value + base : value);
        switch (dynamic->d_tag) {
        case DT_SYMTAB: tables->symbols = address; break;
        case DT_STRTAB: tables->strings = address; break;
        case DT_GNU_HASH: tables->gnu_hash = address; break;
        case DT_VERSYM: tables->versions = address; break;
        case DT_SONAME: soname = value; break;
        default: break;
        }
    }
    if (tables->strings != NULL && soname != 0)
        tables->soname = tables->strings + soname;
    return tables->strings != NULL && tables->symbols != NULL && tables->gnu_hash != NULL;
}

static bool read_tables(const struct link_map *object, struct tables *tables)
{
    return read_dynamic(object->l_ld, object->l_addr, tables);
}

static const ElfW(Sym) * look_up(const struct tables *tables, const char *name, bool hidden)
{
    uint32_t hash = 5381;
    for (const char *at = name; *at != '\0'; at++)
        hash = hash * 33 + (unsigned char)*at;
    const uint32_t *table = tables->gnu_hash;
    uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
    const uint32_t *bucket = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        const ElfW(Sym) *symbol = &tables->symbols[i];
        bool old = tables->versions != NULL && (tables->versions[i] & HIDDEN_VERSION) != 0;
        if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && old == hidden &&
            same_text(tables->strings + symbol->st_name, name))
            return symbol;
        if (chain[i - first] & 1)
            break;
    }
    return NULL;
}

static void *address_of(const struct link_map *object, const ElfW(Sym) * symbol)
{
    void *address = (void *)(object->l_addr + symbol->st_value);
    if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC)
        address = ((void *(*)(void))address)(); /* which of its forms this processor can run */
    return address;
}

extern void _dl_mcount(uintptr_t from, uintptr_t self);

/* The loader's list of what is loaded, from the loader's own symbol table: a program that uses that symbol itself has a
 * copy, which is empty until the program is relocated. What is asked for by name here is a function of the loader that
 * no program has. */
static const struct link_map *loaded_objects(void)
{
    uintptr_t base = (uintptr_t)_dl_mcount & ~(uintptr_t)0xfff;
    while (*(const uint32_t *)base != 0x464c457f) /* ELF's first bytes, on the first page */
        base -= 0x1000;
    const ElfW(Ehdr) *header = (const void *)base;
    const ElfW(Phdr) *segment = (const void *)(base + header->e_phoff);
    while (segment->p_type != PT_DYNAMIC)
        segment++;
    struct tables tables;
    const ElfW(Sym) *symbol = NULL;
    if (read_dynamic((const void *)(base + segment->p_vaddr), base, &tables))
        symbol = look_up(&tables, "_r_debug", false);
    return symbol == NULL ? NULL : ((const struct r_debug *)(base + symbol->st_value))->r_map;
}

static void *function_in(const char *part, const char *name, bool hidden)
{
    for (const struct link_map *object = loaded_objects(); object != NULL; object = object->l_next) {
        struct tables tables;
        if (!begins(part, file_of(object)) || !read_tables(object, &tables))
            continue;
        const ElfW(Sym) *symbol = look_up(&tables, name, hidden);
        if (symbol != NULL)
            return address_of(object, symbol);
    }
    return NULL;
}

static void *libc_function(const char *name)
{
    void *found = NULL;
    for (unsigned hidden = 0; hidden < 2; hidden++)
        for (unsigned part = 0; part < sizeof parts / sizeof *parts && found == NULL; part++)
            found = function_in(parts[part], name, hidden);
    return found;
}

const struct link_map *object_of(const void *address)
{
    Dl_info info;
    struct link_map *object = NULL;
    return address != NULL && dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) != 0 ? object : NULL;
}

bool object_is_called(const struct link_map *object, const char *name)
{
    struct tables tables;
    return object != NULL && read_tables(object, &tables) && tables.soname != NULL && same_text(tables.soname, name);
}

/* --------------------------------------------------------------------------------------------- what --wrap leads to */

/* The loader asks for these addresses as it loads the limiter, before any code of the program or of a library runs. */
#define FOUND(name) __attribute__((ifunc("find_" #name), visibility("hidden")))
#define LIBC(name)                                                                                                     \
    static void (*find_##name(void))(void)                                                                             \
    {                                                                                                                  \
        return (void (*)(void))(FAULT(libc_by_search_order) ? function_in("", #name, false) : libc_function(#name));   \
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
