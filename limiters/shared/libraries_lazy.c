/* What libraries take in each context (libraries.h). */
#include "libraries.h"

#include "charge.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"

#include "../core/fault.h"

/* What HELD_LIBRARY links to: one that could not be read, the same whose kernels were asked for, and one that did not
 * fit then and was unloaded, which the program does not know. */
static char unread_one, used_one, gone_one;

struct range {
    uint32_t kind;
    uint64_t above, below;
};

static bool in_range(const struct entry *entry, const void *range_)
{
    const struct range *range = range_;
    return entry->kind == range->kind && entry->key > range->above && entry->key < range->below;
}

/* The entry of a kind with the least key above one. */
static bool next_of(uint32_t kind, uint64_t above, struct entry *next)
{
    struct range range = {.kind = kind, .above = above, .below = UINT64_MAX};
    bool any = false;
    while (table_find(in_range, &range, next)) {
        range.below = next->key;
        any = true;
    }
    if (any)
        return table_get(kind, range.below, next);
    return false;
}

/* The key of a library in a context: two addresses, mixed. */
static uint64_t residence_of(uint64_t library, const void *context)
{
    return library ^ (uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15);
}

/* Load it there, and say how much that took. One that cannot be loaded takes nothing. */
static uint64_t load_into(uint64_t library, context_t context, int device)
{
    TYPE(module) module;
    context_t before;
    uint64_t bytes = 0;
    if (DRIVER(LibraryGetModule) == NULL || !enter_context(context, &before))
        return 0;
    struct measured measured = context_begins(device);
    DRIVER(LibraryGetModule)(&module, (TYPE(library))(uintptr_t)library);
    context_grew(&measured, &bytes);
    leave_context(before);
    return bytes;
}

/* Whether the library is charged in the context by its first entry, which may have been made before it. */
static bool is_first(uint64_t library, const void *context, int device)
{
    struct entry first, previous;
    if (!table_get(HELD_MODULE, library, &first) || first.device != device)
        return false;
    if (first.owner == NULL && table_take(HELD_MODULE, library, &first)) {
        first.owner = (void *)context;
        table_put(&first, &previous);
    }
    return first.owner == context;
}

/* Another thread may have entered it meanwhile: it is there once. What each `measured` is a part of that; else each has
 * charged all of it. */
static void keep_residence(const struct entry *entry, bool measured)
{
    struct entry previous;
    if (!table_put(entry, &previous) || previous.kind == 0)
        return;
    if (!measured)
        refund(entry->device, previous.bytes);
    else
        table_add(entry->kind, entry->key, (int64_t)previous.bytes, &previous);
}

static bool enter(const struct entry *library, context_t context, int device)
{
    struct entry previous, entry = {.kind = HELD_RESIDENCE,
                                    .key = residence_of(library->key, context),
                                    .device = device,
                                    .owner = context,
                                    .link = (void *)(uintptr_t)library->key};
    if (!counted(device) || library->link == &unread_one || table_get(HELD_RESIDENCE, entry.key, &previous))
        return true;
    bool fits = true;
    if (library->link == &used_one) {
        entry.bytes = load_into(library->key, context, device);
        fits = charge_held(device, entry.bytes);
    } else if (!is_first(library->key, context, device)) {
        entry.bytes = library->bytes;
        fits = charge(device, entry.bytes) == RESULT_OK;
        entry.bytes = fits ? entry.bytes : 0;
    }
    keep_residence(&entry, library->link == &used_one);
    return fits;
}

static bool enter_all(const struct entry *library)
{
    struct entry standing = {0};
    context_t current = context_of_memory();
    bool fits = current == NULL || enter(library, current, device_current());
    while (fits && !FAULT(libraries_in_one_context) && next_of(STANDING_CONTEXT, standing.key, &standing))
        fits = enter(library, standing.owner, standing.device);
    return fits;
}

bool library_loaded(uint64_t key, uint64_t bytes, bool unread)
{
    struct entry previous,
        library = {.kind = HELD_LIBRARY, .key = key, .bytes = bytes, .link = unread ? &unread_one : NULL};
    table_take(HELD_LIBRARY, key, &previous); /* gone, and its name is used again */
    if (bytes == 0 && !unread)
        return true;
    table_put(&library, &previous);
    return enter_all(&library);
}

static bool is_of(const struct entry *entry, const void *library)
{
    return entry->kind == HELD_RESIDENCE && entry->link == library;
}

static void give_back_all(uint64_t key)
{
    struct entry entry;
    while (table_take_match(is_of, (const void *)(uintptr_t)key, &entry)) {
        give_back(&entry);
        uncounted_settle(entry.device);
    }
}

bool library_used(uint64_t key)
{
    struct entry previous, library;
    if (!table_get(HELD_LIBRARY, key, &library) || library.link == NULL)
        return true;
    if (library.link == &gone_one)
        return false;
    if (FAULT(library_use_unnoticed))
        return true;
    bool before = library.link == &used_one;
    library.link = &used_one;
    table_put(&library, &previous);
    if (enter_all(&library))
        return true;
    if (before) /* the program has its kernels */
        return false;
    library.link = &gone_one;
    table_put(&library, &previous);
    DRIVER(LibraryUnload)((TYPE(library))(uintptr_t)key);
    give_back_all(key);
    return false;
}

bool library_is_gone(uint64_t key)
{
    struct entry library;
    return table_get(HELD_LIBRARY, key, &library) && library.link == &gone_one;
}

void library_unloaded(uint64_t key)
{
    struct entry entry;
    if (table_take(HELD_LIBRARY, key, &entry))
        give_back_all(key);
}

bool standing_contexts(int device, bool (*with)(context_t context, int device, void *argument), void *argument)
{
    struct entry standing = {0};
    while (next_of(STANDING_CONTEXT, standing.key, &standing))
        if (standing.device == device && !with(standing.owner, device, argument))
            return false;
    return true;
}

bool libraries_enter(context_t context, int device)
{
    struct entry previous,
        library = {0},
        standing = {.kind = STANDING_CONTEXT, .key = (uintptr_t)context, .device = device, .owner = context};
    bool fits = true;
    if (!counted(device) || table_get(STANDING_CONTEXT, standing.key, &previous))
        return true;
    table_put(&standing, &previous);
    while (fits && next_of(HELD_LIBRARY, library.key, &library))
        fits = enter(&library, context, device);
    return fits;
}
