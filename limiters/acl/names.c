/* Memory that processes share by names. Who allocated it is charged. */

#include "../hal/book.h"
#include "../shared/bodies.h"
#include "../shared/card_use.h"
#include "../shared/held.h"

/* An opened name is known by its text, since both sides close by that. */
static uint64_t key_of_text(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; text != NULL && *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

/* Noted before another process can open it. */
#define SHARED(pointer, call)                                                                                          \
    do {                                                                                                               \
        bool is_first = book_note_shared(pointer);                                                                     \
        result_t answer = call;                                                                                        \
        if (answer != RESULT_OK && is_first)                                                                           \
            book_forget_shared(pointer);                                                                               \
        return answer;                                                                                                 \
    } while (0)

result_t share_by_key(result_t (*real)(void *, size_t, char *, size_t, uint64_t), void *pointer, size_t bytes,
                      char *key, size_t key_bytes, uint64_t flags)
{
    SHARED(pointer, real(pointer, bytes, key, key_bytes, flags));
}

result_t share_by_name(result_t (*real)(const void *, uint64_t, char *, uint32_t), const void *pointer, uint64_t bytes,
                       char *name, uint32_t name_bytes)
{
    SHARED(pointer, real(pointer, bytes, name, name_bytes));
}

static void note_opened(uint64_t key)
{
    struct entry entry = {.kind = HELD_OPENED, .key = key, .count = 1}, previous;
    if (table_take(HELD_OPENED, key, &previous))
        entry.count += previous.count;
    table_put(&entry, &previous);
    report_opened(1);
}

static void note_closed(uint64_t key)
{
    struct entry entry, previous;
    if (!table_take(HELD_OPENED, key, &entry))
        return; /* its maker closes it, or it was not opened here */
    if (--entry.count > 0)
        table_put(&entry, &previous);
    report_opened(-1);
}

result_t open_by_key(result_t (*real)(void **, const char *, uint64_t), void **pointer, const char *key, uint64_t flags)
{
    result_t answer = real(pointer, key, flags);
    if (answer == RESULT_OK)
        note_opened(key_of_text(key));
    return answer;
}

result_t close_by_key(result_t (*real)(const char *), const char *key)
{
    uint64_t hash = key_of_text(key);
    result_t answer = real(key);
    if (answer == RESULT_OK)
        note_closed(hash);
    return answer;
}

result_t open_by_name(result_t (*real)(void **, const char *), void **pointer, const char *name)
{
    result_t answer = real(pointer, name);
    if (answer == RESULT_OK)
        note_opened((uintptr_t)*pointer);
    return answer;
}

result_t close_opened(result_t (*real)(const void *), const void *pointer)
{
    result_t answer = real(pointer);
    if (answer == RESULT_OK)
        note_closed((uintptr_t)pointer);
    return answer;
}
