/* A library's own function, found in its table of symbols: a lookup by name has the limiter's answer. */
#ifndef OWN_FUNCTION_H
#define OWN_FUNCTION_H

#include <dlfcn.h>
#include <link.h>
#include <string.h>

/* The library is one that is loaded, and has the function. */
static void *own_function(const char *library, const char *name)
{
    const struct link_map *map = (const struct link_map *)dlopen(library, RTLD_NOW);
    const ElfW(Sym) *symbol = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *each = map->l_ld; each->d_tag != DT_NULL; each++) {
        symbol = each->d_tag == DT_SYMTAB ? (const ElfW(Sym) *)each->d_un.d_ptr : symbol;
        names = each->d_tag == DT_STRTAB ? (const char *)each->d_un.d_ptr : names;
    }
    while (strcmp(names + symbol->st_name, name) != 0 || symbol->st_value == 0)
        symbol++;
    return (void *)(map->l_addr + symbol->st_value);
}

#endif
