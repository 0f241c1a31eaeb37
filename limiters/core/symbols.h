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
    _Atomic(void *) function; /* the driver's own; each thread that writes it writes the same value, so no lock */
};

#define LIBRARY_NAMES 4u

struct library {
    /* The driver library's file name, which is its DT_SONAME, too; then those of its other versions. */
    const char *names[LIBRARY_NAMES];
    struct symbol *rows; /* one for each function that the limiter answers or calls */
    size_t row_count;
    _Atomic bool is_resolved; /* each row has its function, or the library has none of that name */
    bool has_folder;          /* what lies in the folder of the first row's function is a part of the driver, too */
    /* Whether a lookup of a function without a row fails, though the library has the function; NULL: never. */
    bool (*is_hidden)(const char *name);
};

/* The limiter's functions for one library. */
struct symbols {
    struct library *library;
    void *const *answers; /* by row: the limiter's function; NULL: the limiter only calls the driver's */
};

/* Puts a pointer to a table into a section of this library. Entry points find the tables of all linked driver APIs
 * there. */
#define SYMBOLS(name_, library_, answers_)                                                                             \
    static const struct symbols name_##_symbols = {library_, answers_};                                                \
    static const struct symbols *const name_##_listed                                                                  \
        __attribute__((used, section("hetero_symbols"))) = &name_##_symbols

/* Find the functions behind all rows, in the library that is loaded or else can be loaded. This happens at the first
 * call of any of them, and not again once the library is open. So no thread of the limiter takes the loader's lock,
 * which a thread that waits for the limiter may hold. */
void library_resolve(struct library *library);

/* Whether the code at `caller` is the library's or the limiter's. */
bool library_calls(const struct library *library, const void *caller);

/* A library's function whose name has no row; NULL: none. */
void *library_named(const struct library *library, const char *name);

/* Another vendor's function that the code at `caller` was linked to under a row's name. Other vendors' libraries export
 * these names, too. NULL: the code was linked to the driver's function, or to none. */
void *symbol_of_other_library(struct library *library, struct symbol *row, const void *caller);

/* The driver's function if it was found already; NULL otherwise. */
static inline void *symbol_known(struct symbol *row)
{
    return atomic_load_explicit(&row->function, memory_order_acquire);
}

/* The driver's function behind a row; NULL: the driver has none of that name. */
static inline void *symbol_real(struct library *library, struct symbol *row)
{
    void *function = symbol_known(row);
    if (__builtin_expect(function == NULL, 0)) {
        library_resolve(library);
        if (FAULT(symbols_resolved_late))
            atomic_store(&row->function, library_named(library, row->name));
        function = symbol_known(row);
    }
    return function;
}

#endif
