/* The entry points into a driver, and the real functions behind them.
 *
 * Each limiters/<api> has one table with a row for every symbol it answers or calls. A symbol is answered at every
 * entry point from its row: the exported function, dlsym and dlvsym on any handle, and the driver's own lookup
 * functions.
 */
#ifndef HETERO_SYMBOLS_H
#define HETERO_SYMBOLS_H

#include <stdatomic.h>
#include <stddef.h>

struct symbol {
    const char *name;
    _Atomic(void *) real; /* filled on first use; every thread writes the same value, so it needs no lock */
};

struct symbols {
    const char *library; /* the driver library's file name, as programs open it */
    struct symbol *rows;
    void *const *ours; /* by row: what answers for it; NULL: a function that is only called */
    size_t count;
};

/* Define a table and list it in a section of this library, which the linker puts together: entry points find the tables
 * of whatever driver APIs were linked. */
#define SYMBOLS(name_, library_, rows_, ours_, count_)                                                                 \
    static const struct symbols name_##_symbols = {library_, rows_, ours_, count_};                                    \
    static const struct symbols *const name_##_listed                                                                  \
        __attribute__((used, section("hetero_symbols"))) = &name_##_symbols

/* The real function behind a row, from the library that is loaded or else can be; NULL: it has none of that name. */
void *symbol_resolve(const char *library, struct symbol *row);

/* The real function if it has been asked for; NULL otherwise. */
static inline void *symbol_known(struct symbol *row)
{
    return atomic_load_explicit(&row->real, memory_order_acquire);
}

static inline void *symbol_real(const char *library, struct symbol *row)
{
    void *real = symbol_known(row);
    return __builtin_expect(real != NULL, 1) ? real : symbol_resolve(library, row);
}

#endif
