/* The doors into a driver, and the real functions behind them.
 *
 * Each limiters/<api> has one table with a row for every symbol it answers or calls. A symbol is answered at every
 * door from its row: the exported function, dlsym and dlvsym on any handle, and the driver's own lookup functions.
 */
#ifndef HETERO_SYMBOLS_H
#define HETERO_SYMBOLS_H

#include <stdatomic.h>
#include <stddef.h>

struct symbol {
    const char *name;
    void *ours;          /* NULL: a function we only call */
    _Atomic(void *) real; /* filled on first use; the same value whoever writes it, so it needs no lock */
};

struct symbols {
    const char *library; /* the driver library's file name, as programs open it */
    struct symbol *rows;
    size_t count;
};

/* All tables; defined by the shim, ends with NULL. */
extern const struct symbols *const symbols_tables[];

/* The real function behind a row, from the library that is loaded or else can be; NULL: it has none of that name. */
void *symbol_resolve(const struct symbols *table, struct symbol *row);

/* The real function as far as somebody has asked for it; NULL otherwise. */
static inline void *symbol_known(struct symbol *row)
{
    return atomic_load_explicit(&row->real, memory_order_acquire);
}

static inline void *symbol_real(const struct symbols *table, struct symbol *row)
{
    void *real = symbol_known(row);
    return __builtin_expect(real != NULL, 1) ? real : symbol_resolve(table, row);
}

#endif
