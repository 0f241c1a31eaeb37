/* The entry points into a driver, and the real functions behind them.
 *
 * Each limiters/<api> has one table with a row for every symbol it answers or calls. A symbol is answered at every
 * entry point from its row: the exported function, dlsym and dlvsym on any handle, and the driver's own lookup
 * functions.
 */
#ifndef HETERO_SYMBOLS_H
#define HETERO_SYMBOLS_H

#include "fault.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct symbol {
    const char *name;
    _Atomic(void *) real; /* every thread that writes it writes the same value, so it needs no lock */
};

#define LIBRARY_NAMES 4u

struct library {
    /* The driver library's file name, as programs open it and as it calls itself; then those of other versions of it.
     */
    const char *names[LIBRARY_NAMES];
    struct symbol *rows;
    size_t count;
    _Atomic bool resolved; /* each row has its function, or the library has none of that name */
    /* Whether a function of the library that is in no row is answered as if there were none; NULL: none is. */
    bool (*hides)(const char *name);
};

struct symbols {
    struct library *library;
    void *const *ours; /* by row: what answers for it; NULL: a function that is only called */
};

/* List a table in a section of this library, which the linker puts together: entry points find the tables of whatever
 * driver APIs were linked. */
#define SYMBOLS(name_, library_, ours_)                                                                                \
    static const struct symbols name_##_symbols = {library_, ours_};                                                   \
    static const struct symbols *const name_##_listed                                                                  \
        __attribute__((used, section("hetero_symbols"))) = &name_##_symbols

/* Find the functions behind all rows, in the library that is loaded or else can be. Asked at the first call
 * of any of them, and never again once the library was opened: no thread of ours asks the loader for anything, which
 * the caller of a launcher may hold. */
void library_resolve(struct library *library);

/* Whether the code at `caller` is the library's, or ours. */
bool library_calls(const struct library *library, const void *caller);

/* What a library has under a name that is in no row; NULL: nothing. */
void *library_named(const struct library *library, const char *name);

/* Another vendor's function that the code at `caller` was linked to under a row's name: other vendors give their
 * libraries these names, too. NULL: it was linked to the driver's, or to none. */
void *symbol_anothers(struct library *library, struct symbol *row, const void *caller);

/* The real function if it was found; NULL otherwise. */
static inline void *symbol_known(struct symbol *row)
{
    return atomic_load_explicit(&row->real, memory_order_acquire);
}

/* The real function behind a row; NULL: there is none of that name. */
static inline void *symbol_real(struct library *library, struct symbol *row)
{
    void *real = symbol_known(row);
    if (__builtin_expect(real == NULL, 0)) {
        library_resolve(library);
        if (FAULT(symbols_resolved_late))
            atomic_store(&row->real, library_named(library, row->name));
        real = symbol_known(row);
    }
    return real;
}

#endif
