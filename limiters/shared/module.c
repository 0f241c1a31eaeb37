/* Charges modules and libraries. The arrays that an image declares are charged before it is loaded. Other memory is
 * in the driver's figure afterwards (uncounted.h). If part of the image could not be read, all of the figure's
 * growth is charged. */
#include "module.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "image.h"
#include "libraries.h"
#include "local.h"
#include "uncounted.h"

#include "../core/fault.h"

void module_unloaded(const struct entry *entry)
{
    code_refused(entry->second_bytes);
    give_back_bytes(entry);
}

/* After the driver's answer for an unload: give the charge back, or put the entry back. */
static result_t settle_unloaded(result_t answer, bool is_known, const struct entry *entry)
{
    struct entry previous;
    if (is_known && answer != RESULT_OK)
        table_put(entry, &previous);
    else if (is_known) {
        give_back(entry);
        uncounted_settle(entry->device);
    }
    return answer;
}

#define UNLOAD(module)                                                                                                 \
    do {                                                                                                               \
        struct entry entry;                                                                                            \
        bool is_known = table_take(HELD_MODULE, (uintptr_t)module, &entry);                                            \
        return settle_unloaded(real(module), is_known, &entry);                                                        \
    } while (0)

result_t unload_module(result_t (*real)(TYPE(module)), TYPE(module) module)
{
    UNLOAD(module);
}

static result_t no_call(TYPE(library) library)
{
    (void)library;
    return RESULT_OK;
}

static result_t unload(result_t (*real)(TYPE(library)), TYPE(library) library)
{
    UNLOAD(library);
}

result_t unload_library(result_t (*real)(TYPE(library)), TYPE(library) library)
{
    result_t answer = unload(library_is_unloaded((uintptr_t)library) ? no_call : real, library);
    if (answer == RESULT_OK)
        library_unloaded((uintptr_t)library);
    return answer;
}

/* The device that an image is loaded on: the current one, or the only one while there is no context yet. */
static int device_of_image(void)
{
    int device = device_current();
    return device == DEVICE_NONE ? sole_device() : device;
}

static __thread uint64_t covered_bytes; /* charged for this thread's load, and not claimed by covered_by_load() yet */

uint64_t covered_by_load(uint64_t bytes)
{
    uint64_t covered_part = bytes < covered_bytes ? bytes : covered_bytes;
    covered_bytes -= covered_part;
    return covered_part;
}

/* The bytes of the stacks for an image that the context does not have yet. */
static uint64_t missing_stack_bytes(uint64_t bytes, context_t context)
{
    struct entry charged_entry = {0};
    if (bytes == 0 || context == NULL || !table_get(STACKS_OF_CALLS, (uintptr_t)context, &charged_entry))
        charged_entry.bytes = 0;
    return bytes > charged_entry.bytes ? bytes - charged_entry.bytes : 0;
}

static void note_stacks(uint64_t bytes, int device, context_t context)
{
    struct entry previous,
        entry = {
            .key = (uintptr_t)context, .kind = STACKS_OF_CALLS, .device = device, .bytes = bytes, .owner = context};
    if (missing_stack_bytes(bytes, context) > 0 && context != NULL)
        table_put(&entry, &previous);
}

/* One load, from before the driver's call until after it. */
struct load {
    struct image image;
    struct driver_baseline baseline;
    int device;
    uint64_t charged_bytes; /* for the image's arrays; after the load, all that it took if it could not be read */
    uint64_t stack_bytes;   /* charged for the context's stacks, until the driver's figure has them */
};

/* Small arrays of a module share blocks, which the figure has after the load. A library is loaded later, at a time when
 * the figure is not read, so its small arrays are charged here. */
static result_t load_begins(struct load *load, int device, const struct image *image, bool is_lazy)
{
    *load = (struct load){.image = *image, .device = device, .charged_bytes = block_bytes_of(image->global_bytes)};
    if (FAULT(module_arrays_uncharged))
        load->charged_bytes = 0;
    if (is_lazy && load->charged_bytes == 0 && !FAULT(lazy_globals_uncharged))
        load->charged_bytes = image->global_bytes;
    load->stack_bytes = missing_stack_bytes(stack_bytes_of_calls(device, image->calls_malloc, image->calls_printf),
                                            context_of_memory());
    result_t answer = charge(device, load->charged_bytes + load->stack_bytes);
    if (answer != RESULT_OK)
        return answer;
    covered_bytes = load->charged_bytes;
    code_loaded(image->code_bytes);
    if (image->has_unread)
        load->baseline = context_begins(device);
    return RESULT_OK;
}

static void load_ends(struct load *load, result_t answer, uint64_t key)
{
    uint64_t grown_bytes = 0;
    covered_bytes = 0;
    refund(load->device, load->stack_bytes);
    if (load->image.has_unread)
        context_grew(&load->baseline, &grown_bytes);
    if (answer == RESULT_OK && grown_bytes > load->charged_bytes && !FAULT(code_growth_uncharged)) {
        charge_unconditionally(load->device, grown_bytes - load->charged_bytes);
        load->charged_bytes = grown_bytes;
    }
    settle(answer, HELD_MODULE, key, load->device, load->charged_bytes, (void *)(uintptr_t)load->image.code_bytes);
    if (answer != RESULT_OK)
        code_refused(load->image.code_bytes);
}

/* False: the loaded image does not fit. The figure is read last: sooner or later it has what contexts are charged for a
 * library, which would be charged twice. */
static bool load_fits(const struct load *load, uint64_t key, bool is_lazy)
{
    if (is_lazy && !library_loaded(key, load->charged_bytes, load->image.has_unread))
        return false;
    if (!is_lazy) /* a library makes its context allocate stacks when it is used */
        note_stacks(stack_bytes_of_calls(load->device, load->image.calls_malloc, load->image.calls_printf),
                    load->device, context_of_memory());
    return FAULT(module_arrays_uncharged) || (uncounted_settle(load->device) && is_within_limit(load->device));
}

/* The body of a call that loads an image. If it took more than the limit allows, it is unloaded again by `undo`. */
#define LOAD(module, read, is_lazy, undo, call)                                                                        \
    do {                                                                                                               \
        int device = device_of_image();                                                                                \
        if (!counted(device))                                                                                          \
            return call;                                                                                               \
        struct image image = read;                                                                                     \
        struct load load;                                                                                              \
        result_t answer = load_begins(&load, device, &image, is_lazy);                                                 \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = call;                                                                                                 \
        uint64_t key = answer == RESULT_OK ? (uintptr_t)*module : 0;                                                   \
        load_ends(&load, answer, key);                                                                                 \
        if (answer != RESULT_OK || load_fits(&load, key, is_lazy))                                                     \
            return answer;                                                                                             \
        undo;                                                                                                          \
        return ERROR(OUT_OF_MEMORY);                                                                                   \
    } while (0)

result_t load_module(result_t (*real)(TYPE(module) *, const char *), TYPE(module) *module, const char *path)
{
    LOAD(module, image_of_file(path), false, unload_module(DRIVER(ModuleUnload), *module), real(module, path));
}

result_t load_image(result_t (*real)(TYPE(module) *, const void *), TYPE(module) *module, const void *data)
{
    LOAD(module, image_read(data), false, unload_module(DRIVER(ModuleUnload), *module), real(module, data));
}

result_t load_image_with(result_t (*real)(TYPE(module) *, const void *, unsigned, TYPE(jit_option) *, void **),
                         TYPE(module) *module, const void *data, unsigned option_count, TYPE(jit_option) *options,
                         void **option_values)
{
    LOAD(module, image_read(data), false, unload_module(DRIVER(ModuleUnload), *module),
         real(module, data, option_count, options, option_values));
}

/* The driver loads a library into a context when it is first used there. It is charged before, in each context. */
result_t load_library(result_t (*real)(TYPE(library) *, const void *, TYPE(jit_option) *, void **, unsigned,
                                       TYPE(libraryOption) *, void **, unsigned),
                      TYPE(library) *library, const void *data, TYPE(jit_option) *options, void **option_values,
                      unsigned option_count, TYPE(libraryOption) *library_options, void **library_option_values,
                      unsigned library_option_count)
{
    LOAD(library, image_read(data), true, unload_library(DRIVER(LibraryUnload), *library),
         real(library, data, options, option_values, option_count, library_options, library_option_values,
              library_option_count));
}

result_t load_library_file(result_t (*real)(TYPE(library) *, const char *, TYPE(jit_option) *, void **, unsigned,
                                            TYPE(libraryOption) *, void **, unsigned),
                           TYPE(library) *library, const char *path, TYPE(jit_option) *options, void **option_values,
                           unsigned option_count, TYPE(libraryOption) *library_options, void **library_option_values,
                           unsigned library_option_count)
{
    LOAD(library, image_of_file(path), true, unload_library(DRIVER(LibraryUnload), *library),
         real(library, path, options, option_values, option_count, library_options, library_option_values,
              library_option_count));
}

/* After a call that may load a library into the current context: charge what the driver's figure shows. */
static result_t settle_used(result_t answer)
{
    return answer != RESULT_OK || uncounted_check_rarely(device_current()) ? answer : ERROR(OUT_OF_MEMORY);
}

result_t module_of_library(result_t (*real)(TYPE(module) *, TYPE(library)), TYPE(module) *module, TYPE(library) library)
{
    return library_used((uintptr_t)library) ? settle_used(real(module, library)) : ERROR(OUT_OF_MEMORY);
}

result_t global_of_library(result_t (*real)(pointer_t *, size_t *, TYPE(library), const char *), pointer_t *pointer,
                           size_t *bytes, TYPE(library) library, const char *name)
{
    return library_used((uintptr_t)library) ? settle_used(real(pointer, bytes, library, name)) : ERROR(OUT_OF_MEMORY);
}

/* A kernel can be launched directly, and its library is loaded then. */
result_t kernel_of_library(result_t (*real)(TYPE(kernel) *, TYPE(library), const char *), TYPE(kernel) *kernel,
                           TYPE(library) library, const char *name)
{
    result_t answer = library_used((uintptr_t)library) ? real(kernel, library, name) : ERROR(OUT_OF_MEMORY);
    if (answer == RESULT_OK)
        local_of_kernel(*kernel);
    return answer;
}

result_t kernels_of_library(result_t (*real)(TYPE(kernel) *, unsigned, TYPE(library)), TYPE(kernel) *kernels,
                            unsigned kernel_count, TYPE(library) library)
{
    result_t answer = library_used((uintptr_t)library) ? real(kernels, kernel_count, library) : ERROR(OUT_OF_MEMORY);
    for (unsigned index = 0; answer == RESULT_OK && index < kernel_count; index++)
        if (kernels[index] != NULL)
            local_of_kernel(kernels[index]);
    return answer;
}

/* A unified function can be called by a kernel of another library. */
result_t unified_of_library(result_t (*real)(void **, TYPE(library), const char *), void **function,
                            TYPE(library) library, const char *name)
{
    return library_used((uintptr_t)library) ? settle_used(real(function, library, name)) : ERROR(OUT_OF_MEMORY);
}

/* The call loads nothing. The driver must not get a library that the limiter has unloaded. */
result_t count_of_library(result_t (*real)(unsigned *, TYPE(library)), unsigned *count, TYPE(library) library)
{
    return library_is_unloaded((uintptr_t)library) ? ERROR(OUT_OF_MEMORY) : real(count, library);
}

result_t function_of_kernel(result_t (*real)(TYPE(function) *, TYPE(kernel)), TYPE(function) *function,
                            TYPE(kernel) kernel)
{
    result_t answer = settle_used(real(function, kernel));
    if (answer == RESULT_OK && !FAULT(kernel_functions_unknown))
        local_of_function(*function); /* its handle is not the kernel's */
    return answer;
}

result_t load_function(result_t (*real)(TYPE(function)), TYPE(function) function)
{
    return settle_used(real(function));
}
