/* Charges libraries in each context (libraries.h). */
#include "libraries.h"

#include "charge.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"

#include "../core/fault.h"

/* Addresses that the `link` of a HELD_LIBRARY has if its image could not be read: none of its kernels was looked up;
 * one was; the library did not fit then and was unloaded without the program's knowledge. */
static char unread_tag, used_tag, unloaded_tag;

struct key_range {
    uint32_t kind;
    uint64_t above_key, below_key;
};

static bool is_in_range(const struct entry *entry, const void *argument)
{
    const struct key_range *range = argument;
    return entry->kind == range->kind && entry->key > range->above_key && entry->key < range->below_key;
}

/* The entry of a kind with the smallest key above `above_key`. */
static bool next_of(uint32_t kind, uint64_t above_key, struct entry *next)
{
    struct key_range range = {.kind = kind, .above_key = above_key, .below_key = UINT64_MAX};
    bool has_any = false;
    while (table_find(is_in_range, &range, next)) {
        range.below_key = next->key;
        has_any = true;
    }
    if (has_any)
        return table_get(kind, range.below_key, next);
    return false;
}

/* The key of a library in a context: a hash of both addresses. */
static uint64_t residence_key(uint64_t library, const void *context)
{
    return library ^ (uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15);
}

/* Load a library into a context. Returns the bytes that it took; 0: it cannot be loaded. */
static uint64_t load_library_into(uint64_t library, context_t context, int device)
{
    TYPE(module) module;
    context_t previous_context;
    uint64_t bytes = 0;
    if (DRIVER(LibraryGetModule) == NULL || !enter_context(context, &previous_context))
        return 0;
    struct driver_baseline baseline = context_begins(device);
    DRIVER(LibraryGetModule)(&module, (TYPE(library))(uintptr_t)library);
    context_grew(&baseline, &bytes);
    leave_context(previous_context);
    return bytes;
}

/* Whether the library is charged in the context by the entry of its load, which may have been made before the context.
 */
static bool is_charged_by_load(uint64_t library, const void *context, int device)
{
    struct entry module_entry, previous;
    if (!table_get(HELD_MODULE, library, &module_entry) || module_entry.device != device)
        return false;
    if (module_entry.owner == NULL && table_take(HELD_MODULE, library, &module_entry)) {
        module_entry.owner = (void *)context;
        table_put(&module_entry, &previous);
    }
    return module_entry.owner == context;
}

/* Keep a library's entry in a context. If another thread has added it meanwhile, and the bytes were measured, each
 * thread has measured a part of them. Otherwise each has charged all of them, and one charge is given back. */
static void keep_residence(const struct entry *entry, bool is_measured)
{
    struct entry previous;
    if (!table_put(entry, &previous) || previous.kind == 0)
        return;
    if (!is_measured)
        refund(entry->device, previous.bytes);
    else
        table_add(entry->kind, entry->key, (int64_t)previous.bytes, &previous);
}

static bool enter_library(const struct entry *library, context_t context, int device)
{
    struct entry previous, entry = {.kind = HELD_RESIDENCE,
                                    .key = residence_key(library->key, context),
                                    .device = device,
                                    .owner = context,
                                    .link = (void *)(uintptr_t)library->key};
    if (!counted(device) || library->link == &unread_tag || table_get(HELD_RESIDENCE, entry.key, &previous))
        return true;
    bool has_room = true;
    if (library->link == &used_tag) {
        entry.bytes = load_library_into(library->key, context, device);
        has_room = charge_unconditionally(device, entry.bytes);
    } else if (!is_charged_by_load(library->key, context, device)) {
        entry.bytes = library->bytes;
        has_room = charge(device, entry.bytes) == RESULT_OK;
        entry.bytes = has_room ? entry.bytes : 0;
    }
    keep_residence(&entry, library->link == &used_tag);
    return has_room;
}

static bool enter_standing_contexts(const struct entry *library)
{
    struct entry context_entry = {0};
    context_t current_context = context_of_memory();
    bool has_room = current_context == NULL || enter_library(library, current_context, device_current());
    while (has_room && !FAULT(libraries_in_one_context) && next_of(STANDING_CONTEXT, context_entry.key, &context_entry))
        has_room = enter_library(library, context_entry.owner, context_entry.device);
    return has_room;
}

bool library_loaded(uint64_t key, uint64_t bytes, bool is_unread)
{
    struct entry previous,
        library = {.kind = HELD_LIBRARY, .key = key, .bytes = bytes, .link = is_unread ? &unread_tag : NULL};
    table_take(HELD_LIBRARY, key, &previous); /* the driver reuses the name of an unloaded library */
    if (bytes == 0 && !is_unread)
        return true;
    table_put(&library, &previous);
    return enter_standing_contexts(&library);
}

static bool is_residence_of(const struct entry *entry, const void *library)
{
    return entry->kind == HELD_RESIDENCE && entry->link == library;
}

static void give_back_residences(uint64_t key)
{
    struct entry entry;
    while (table_take_match(is_residence_of, (const void *)(uintptr_t)key, &entry)) {
        give_back(&entry);
        uncounted_settle(entry.device);
    }
}

bool library_used(uint64_t key)
{
    struct entry previous, library;
    if (!table_get(HELD_LIBRARY, key, &library) || library.link == NULL)
        return true;
    if (library.link == &unloaded_tag)
        return false;
    if (FAULT(library_use_unnoticed))
        return true;
    bool was_used = library.link == &used_tag;
    library.link = &used_tag;
    table_put(&library, &previous);
    if (enter_standing_contexts(&library))
        return true;
    if (was_used) /* the program has its kernels */
        return false;
    library.link = &unloaded_tag;
    table_put(&library, &previous);
    DRIVER(LibraryUnload)((TYPE(library))(uintptr_t)key);
    give_back_residences(key);
    return false;
}

bool library_is_unloaded(uint64_t key)
{
    struct entry library;
    return table_get(HELD_LIBRARY, key, &library) && library.link == &unloaded_tag;
}

void library_unloaded(uint64_t key)
{
    struct entry entry;
    if (table_take(HELD_LIBRARY, key, &entry))
        give_back_residences(key);
}

bool standing_contexts(int device, bool (*visit)(context_t context, int device, void *argument), void *argument)
{
    struct entry context_entry = {0};
    while (next_of(STANDING_CONTEXT, context_entry.key, &context_entry))
        if (context_entry.device == device && !visit(context_entry.owner, device, argument))
            return false;
    return true;
}

bool libraries_enter(context_t context, int device)
{
    struct entry previous,
        library = {0},
        context_entry = {.kind = STANDING_CONTEXT, .key = (uintptr_t)context, .device = device, .owner = context};
    bool has_room = true;
    if (!counted(device) || table_get(STANDING_CONTEXT, context_entry.key, &previous))
        return true;
    table_put(&context_entry, &previous);
    while (has_room && next_of(HELD_LIBRARY, library.key, &library))
        has_room = enter_library(&library, context, device);
    return has_room;
}
