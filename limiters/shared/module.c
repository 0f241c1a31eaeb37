/* Modules and libraries: the arrays that an image declares are charged before it is loaded. What else it takes, and
 * what it does not say, is told by the driver's figure afterwards (uncounted.h).
 */
#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "image.h"
#include "uncounted.h"

/* Give back what is charged for a module or a library that the driver unloaded, or keep it where it did not. */
static result_t settle_unloaded(result_t answer, bool ours, const struct entry *entry)
{
    struct entry previous;
    if (ours && answer != RESULT_OK)
        table_put(entry, &previous);
    else if (ours) {
        give_back(entry);
        uncounted_settle(entry->device);
    }
    return answer;
}

#define UNLOAD(module)                                                                                                 \
    do {                                                                                                               \
        struct entry entry;                                                                                            \
        bool ours = table_take(HELD_MODULE, (uintptr_t)module, &entry);                                                \
        return settle_unloaded(real(module), ours, &entry);                                                            \
    } while (0)

result_t unload_module(result_t (*real)(TYPE(module)), TYPE(module) module)
{
    UNLOAD(module);
}

result_t unload_library(result_t (*real)(TYPE(library)), TYPE(library) library)
{
    UNLOAD(library);
}

/* Where an image goes: the current device, or the only one while there is no context yet. */
static int device_of_image(void)
{
    int device = device_current();
    return device == DEVICE_NONE ? device_only() : device;
}

/* What an image took beyond the limit goes back with it. */
#define LOAD(module, read, undo, call)                                                                                 \
    do {                                                                                                               \
        int device = device_of_image();                                                                                \
        if (!counted(device))                                                                                          \
            return call;                                                                                               \
        struct image image = read;                                                                                     \
        uint64_t bytes = blocks_for(image.globals);                                                                    \
        result_t answer = charge(device, bytes);                                                                       \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        code_loaded(image.bytes, image.calls);                                                                         \
        answer = call;                                                                                                 \
        answer = settle(answer, HELD_MODULE, answer == RESULT_OK ? (uint64_t)(uintptr_t)*module : 0, device, bytes,    \
                        NULL);                                                                                         \
        if (answer != RESULT_OK)                                                                                       \
            code_refused(image.bytes);                                                                                 \
        if (answer != RESULT_OK || uncounted_settle(device))                                                           \
            return answer;                                                                                             \
        undo;                                                                                                          \
        return ERROR(OUT_OF_MEMORY);                                                                                   \
    } while (0)

result_t load_module(result_t (*real)(TYPE(module) *, const char *), TYPE(module) *module, const char *path)
{
    LOAD(module, image_of_file(path), unload_module(DRIVER(ModuleUnload), *module), real(module, path));
}

result_t load_image(result_t (*real)(TYPE(module) *, const void *), TYPE(module) *module, const void *image_)
{
    LOAD(module, image_read(image_), unload_module(DRIVER(ModuleUnload), *module), real(module, image_));
}

result_t load_image_with(result_t (*real)(TYPE(module) *, const void *, unsigned, TYPE(jit_option) *, void **),
                         TYPE(module) *module, const void *image_, unsigned count, TYPE(jit_option) *options,
                         void **values)
{
    LOAD(module, image_read(image_), unload_module(DRIVER(ModuleUnload), *module),
         real(module, image_, count, options, values));
}

/* A library is loaded where and when it is first used: it is charged before that. */
result_t load_library(result_t (*real)(TYPE(library) *, const void *, TYPE(jit_option) *, void **, unsigned,
                                       TYPE(libraryOption) *, void **, unsigned),
                      TYPE(library) *library, const void *image_, TYPE(jit_option) *options, void **values,
                      unsigned count, TYPE(libraryOption) *library_options, void **library_values,
                      unsigned library_count)
{
    LOAD(library, image_read(image_), unload_library(DRIVER(LibraryUnload), *library),
         real(library, image_, options, values, count, library_options, library_values, library_count));
}

result_t load_library_file(result_t (*real)(TYPE(library) *, const char *, TYPE(jit_option) *, void **, unsigned,
                                            TYPE(libraryOption) *, void **, unsigned),
                           TYPE(library) *library, const char *path, TYPE(jit_option) *options, void **values,
                           unsigned count, TYPE(libraryOption) *library_options, void **library_values,
                           unsigned library_count)
{
    LOAD(library, image_of_file(path), unload_library(DRIVER(LibraryUnload), *library),
         real(library, path, options, values, count, library_options, library_values, library_count));
}

/* Of what is used of a library now, the driver's figure tells. */
#define USE(call)                                                                                                      \
    do {                                                                                                               \
        result_t answer = call;                                                                                        \
        return answer != RESULT_OK || uncounted_look(device_current()) ? answer : ERROR(OUT_OF_MEMORY);                \
    } while (0)

result_t module_of_library(result_t (*real)(TYPE(module) *, TYPE(library)), TYPE(module) *module, TYPE(library) library)
{
    USE(real(module, library));
}

result_t global_of_library(result_t (*real)(pointer_t *, size_t *, TYPE(library), const char *), pointer_t *pointer,
                           size_t *bytes, TYPE(library) library, const char *name)
{
    USE(real(pointer, bytes, library, name));
}

result_t function_of_kernel(result_t (*real)(TYPE(function) *, TYPE(kernel)), TYPE(function) *function,
                            TYPE(kernel) kernel)
{
    USE(real(function, kernel));
}

result_t load_function(result_t (*real)(TYPE(function)), TYPE(function) function)
{
    USE(real(function));
}
