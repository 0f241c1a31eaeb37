/* The arena of a simulated driver's objects (object.h). */
#include "object.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

bool objects_make(void)
{
    void *made = mmap(NULL, objects.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                      0);
    objects.start = made == MAP_FAILED ? NULL : made;
    return objects.start;
}

void objects_forget(void)
{
    objects.used_bytes = 0;
    objects.first_free = objects.last_free = NULL;
}

void *object_new(int kind)
{
    struct object *object = objects.first_free;
    if (object) {
        objects.first_free = object->next_free;
    } else if (objects.used_bytes < objects.size_bytes) {
        object = (struct object *)(objects.start + objects.used_bytes);
        objects.used_bytes += objects.cell_bytes;
    } else {
        return NULL;
    }
    memset(object, 0, objects.cell_bytes);
    object->kind = kind;
    object->number = ++objects.last_number;
    return object;
}

void *object_find(const void *handle, int kind)
{
    uint64_t offset = (uint64_t)((const char *)handle - objects.start);
    if (!handle || offset >= objects.used_bytes || offset % objects.cell_bytes ||
        ((const struct object *)handle)->kind != kind)
        return NULL;
    return (void *)(uintptr_t)handle;
}

void *object_next(const void *object, int kind)
{
    uint64_t offset = object ? (uint64_t)((const char *)object - objects.start) + objects.cell_bytes : 0;
    for (; offset < objects.used_bytes; offset += objects.cell_bytes)
        if (((struct object *)(objects.start + offset))->kind == kind)
            return objects.start + offset;
    return NULL;
}

void object_free(void *handle)
{
    struct object *object = handle;
    bool is_last = objects.is_queue && objects.first_free;
    object->kind = 0;
    object->next_free = is_last ? NULL : objects.first_free;
    if (is_last)
        objects.last_free->next_free = object;
    else
        objects.first_free = object;
    if (objects.is_queue)
        objects.last_free = object;
}
