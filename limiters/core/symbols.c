/* dlsym, dlvsym, dlopen and dladdr as the program calls them, and libc's own for the limiter.
 *
 * A lookup of a name that the limiter answers returns the limiter's function if the handle has that symbol. Every other
 * lookup jumps to libc's function. It is a jump, because libc's function tells its caller by the return address
 * (RTLD_NEXT, run paths).
 */
#include "symbols.h"

#include "libc.h"
#include "tenant.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------- lookup in tables
 */

/* The linker's bounds of this library and of the section of its tables (SYMBOLS). */
#define HIDDEN __attribute__((visibility("hidden")))
extern const char __ehdr_start[] HIDDEN, _end[] HIDDEN;
extern const struct symbols *const __start_hetero_symbols[] HIDDEN;
extern const struct symbols *const __stop_hetero_symbols[] HIDDEN;

static bool is_of_this_library(const void *function)
{
    return (uintptr_t)function >= (uintptr_t)__ehdr_start && (uintptr_t)function < (uintptr_t)_end;
}

/* The function that a program linked to this name would call without the limiter. */
static void *next_in_search_order(const char *name)
{
    void *function = libc_dlsym(RTLD_NEXT, name);
    return is_of_this_library(function) ? NULL : function;
}

/* A handle of the library, by the first of its names that dlopen opens with these flags; NULL: by none. */
static void *open_library(const struct library *library, int flags)
{
    void *handle = NULL;
    for (unsigned name_index = 0; name_index < LIBRARY_NAMES && library->names[name_index] != NULL && handle == NULL;
         name_index++)
        handle = libc_dlopen(library->names[name_index], flags);
    return handle;
}

static void *loaded_handle(const struct library *library)
{
    return open_library(library, RTLD_LAZY | RTLD_NOLOAD);
}

static bool has_name_of(const struct link_map *object, const struct library *library)
{
    bool has_name = false;
    for (unsigned name_index = 0; name_index < LIBRARY_NAMES && library->names[name_index] != NULL; name_index++)
        has_name = has_name || object_is_called(object, library->names[name_index]);
    return has_name;
}

/* Whether an object lies in the library's folder, or below it, where that makes it a part of the driver. */
static bool is_beside_library(const struct link_map *object, const struct library *library)
{
    const struct link_map *own = library->has_folder ? object_of(symbol_known(library->rows)) : NULL;
    const char *last_slash = own == NULL ? NULL : strrchr(own->l_name, '/');
    return last_slash != NULL && strncmp(own->l_name, object->l_name, (size_t)(last_slash - own->l_name) + 1) == 0;
}

bool library_calls(const struct library *library, const void *caller)
{
    const struct link_map *object = is_of_this_library(caller) ? NULL : object_of(caller);
    return is_of_this_library(caller) ||
           (object != NULL && (has_name_of(object, library) || is_beside_library(object, library)));
}

void library_resolve(struct library *library)
{
    if (atomic_load_explicit(&library->is_resolved, memory_order_acquire))
        return;
    /* No lock is held around the loader's. A second thread finds the same functions. The handle is never closed. */
    void *handle = loaded_handle(library);
    if (handle == NULL)
        handle = open_library(library, RTLD_LAZY);
    if (handle == NULL || FAULT(symbols_resolved_late))
        return;
    for (struct symbol *row = library->rows; row < library->rows + library->row_count; row++) {
        void *function = libc_dlsym(handle, row->name);
        if (is_of_this_library(function))
            function = NULL; /* only the limiter has this name, and it must not call itself */
        atomic_store_explicit(&row->function, function, memory_order_release);
    }
    atomic_store_explicit(&library->is_resolved, true, memory_order_release);
}

void *library_named(const struct library *library, const char *name)
{
    void *handle = loaded_handle(library), *function = handle == NULL ? NULL : libc_dlsym(handle, name);
    return is_of_this_library(function) ? NULL : function;
}

/* Whether a function is the driver's, or that of the driver's copy under another file name. Another library's function
 * of the same name is neither. */
static bool is_the_drivers(struct library *library, const void *function)
{
    const struct link_map *object = object_of(function);
    if (object == NULL || has_name_of(object, library))
        return object != NULL;
    return loaded_handle(library) != NULL && object == object_of(symbol_real(library, library->rows));
}

/* The function of this name in an object or in what the object was linked to. The program itself has no file name. */
static void *find_linked(const struct link_map *object, const char *name)
{
    void *handle = libc_dlopen(*object->l_name == '\0' ? NULL : object->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *function = handle == NULL ? NULL : libc_dlsym(handle, name);
    if (handle != NULL)
        dlclose(handle);
    return is_of_this_library(function) ? NULL : function;
}

/* The same in all loaded objects, in the order of loading. */
static void *find_linked_anywhere(const char *name)
{
    void *function = NULL;
    const struct link_map *object = object_of(__ehdr_start);
    while (object->l_prev != NULL)
        object = object->l_prev;
    for (; object != NULL && function == NULL; object = object->l_next)
        function = find_linked(object, name);
    return function;
}

void *symbol_of_other_library(struct library *library, struct symbol *row, const void *caller)
{
    const struct link_map *object = object_of(caller);
    void *function = object == NULL ? NULL : find_linked(object, row->name);
    if (function == NULL)
        function = next_in_search_order(row->name);
    /* A caller that jumped here left no return address. Without the driver's library only another one can be meant. */
    if (function == NULL && loaded_handle(library) == NULL)
        function = find_linked_anywhere(row->name);
    return function == NULL || is_the_drivers(library, function) ? NULL : function;
}

/* A name that the limiter answers: its library, its row there, and the limiter's function. */
struct answered_symbol {
    struct library *library;
    struct symbol *row;
    void *answer;
};

static bool find_answered(const char *name, struct answered_symbol *answered)
{
    for (const struct symbols *const *table = __start_hetero_symbols; table < __stop_hetero_symbols; table++) {
        struct library *library = (*table)->library;
        for (size_t row_index = 0; row_index < library->row_count; row_index++)
            if ((*table)->answers[row_index] != NULL && same_text(library->rows[row_index].name, name)) {
                *answered = (struct answered_symbol){library, &library->rows[row_index], (*table)->answers[row_index]};
                return true;
            }
    }
    return false;
}

/* Whether a lookup searches the whole program, rather than one object and what it was linked to. */
static bool is_everywhere(const void *handle)
{
    return handle == RTLD_NEXT || handle == RTLD_DEFAULT;
}

/* Whether this handle leads to a driver's function that has no row and is hidden. If so, a failing lookup sets dlerror,
 * which programs read. */
static bool is_hidden_lookup(void *handle, const char *name)
{
    for (const struct symbols *const *table = __start_hetero_symbols; name != NULL && table < __stop_hetero_symbols;
         table++) {
        struct library *library = (*table)->library;
        if (library->is_hidden == NULL || name[0] != library->rows[0].name[0] || name[1] != library->rows[0].name[1] ||
            is_everywhere(handle) || tenancy() == TENANCY_FREE)
            continue;
        const struct link_map *object = object_of(libc_dlsym(handle, name));
        if (object == NULL || !has_name_of(object, library) || !library->is_hidden(name))
            continue;
        char unknown_name[160];
        snprintf(unknown_name, sizeof unknown_name, "%s, which the limiter does not know", name);
        libc_dlsym(handle, unknown_name);
        return true;
    }
    return false;
}

/* --------------------------------------------------------------------------------------------- the loader's functions
 */

/* A program could look up libc's dlsym and pass the limiter, so the limiter answers these names, too. */
enum { ROW_dlsym, ROW_dlvsym, ROW_dlopen, ROW_dladdr, ROW_dladdr1, ROWS };

static struct symbol loader_rows[ROWS] = {
    [ROW_dlsym] = {"dlsym", (void *)libc_dlsym},       [ROW_dlvsym] = {"dlvsym", (void *)libc_dlvsym},
    [ROW_dlopen] = {"dlopen", (void *)libc_dlopen},    [ROW_dladdr] = {"dladdr", (void *)libc_dladdr},
    [ROW_dladdr1] = {"dladdr1", (void *)libc_dladdr1},
};
static void *const loader_answers[ROWS] = {(void *)dlsym, (void *)dlvsym, (void *)dlopen, (void *)dladdr,
                                           (void *)dladdr1};

static struct library loader = {.names = {"libc.so.6"}, .rows = loader_rows, .row_count = ROWS, .is_resolved = true};
SYMBOLS(loader, &loader, loader_answers);

/* ------------------------------------------------------------------------------------------------- the entry points */

/* What the entry points below do next: return `answer` if `jump_target` is NULL. Otherwise they jump there with the
 * caller's arguments and return address. */
struct lookup {
    void *answer;
    void *jump_target;
};

/* What a search of the whole program finds. The limiter's functions are always found, so it asks whether the driver is
 * loaded and has the function. */
static void *lookup_everywhere(const struct answered_symbol *answered, bool is_after_caller)
{
    bool is_loaded = loaded_handle(answered->library) != NULL && symbol_real(answered->library, answered->row) != NULL;
    /* RTLD_NEXT from a library in front of the driver means the driver, not that library again. */
    void *function = is_loaded && is_after_caller ? NULL : next_in_search_order(answered->row->name);
    return function == NULL && is_loaded ? answered->answer : function;
}

/* What a handle has under a name that the limiter answers: the limiter's function where the loader would find that or
 * the driver's. */
static void *lookup_by_handle(void *handle, const struct answered_symbol *answered, const char *version,
                              bool has_version)
{
    const char *name = answered->row->name;
    void *function = answered->answer;
    if (!is_everywhere(handle))
        function = has_version ? libc_dlvsym(handle, name, version) : libc_dlsym(handle, name);
    if (is_of_this_library(function))
        function = lookup_everywhere(answered, handle == RTLD_NEXT);
    bool is_answered = is_the_drivers(answered->library, function) && !FAULT(handles_unanswered);
    return is_answered ? answered->answer : function;
}

__attribute__((used, visibility("hidden"))) struct lookup hetero_look_up(void *handle, const char *name,
                                                                         const char *version, long has_version)
{
    void *loader_function = has_version ? (void *)libc_dlvsym : (void *)libc_dlsym;
    struct answered_symbol answered;
    if (name == NULL || !find_answered(name, &answered) ||
        (FAULT(loader_calls_unanswered) && answered.library == &loader))
        return (struct lookup){NULL, is_hidden_lookup(handle, name) ? NULL : loader_function};
    /* A sanitizer looks these up before it is initialised. Nothing may be called then but libc's function. */
    bool is_early = answered.library == &loader && is_everywhere(handle);
    if (is_early && atomic_load(&process.tenancy) != TENANCY_FREE)
        return (struct lookup){answered.answer, NULL};
    if (is_early || tenancy() == TENANCY_FREE)
        return (struct lookup){NULL, loader_function};
    return (struct lookup){lookup_by_handle(handle, &answered, version, has_version), NULL};
}

/* What dlopen's entry point does next: jump to `jump_target` with those of the caller's flags that are in `flags_mask`.
 */
struct opening {
    void *jump_target;
    long flags_mask;
};

/* With RTLD_DEEPBIND a library searches itself and its own dependencies first, and would find the driver's functions.
 */
__attribute__((used, visibility("hidden"))) struct opening hetero_open(const char *file, int flags)
{
    (void)file;
    bool is_past_limiter = (flags & RTLD_DEEPBIND) != 0 && tenancy() != TENANCY_FREE;
    return (struct opening){(void *)libc_dlopen, is_past_limiter ? ~(long)RTLD_DEEPBIND : -1L};
}

#if defined(__x86_64__)
#define ENTRY_POINT(name, versioned)                                                                                   \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                                        \
            "  push %rdi\n  push %rsi\n  push %rdx\n"                                                                  \
            "  mov $" #versioned ", %ecx\n"                                                                            \
            "  call hetero_look_up\n"                                                                                  \
            "  mov %rdx, %rcx\n"                                                                                       \
            "  pop %rdx\n  pop %rsi\n  pop %rdi\n"                                                                     \
            "  test %rcx, %rcx\n  jz 1f\n  jmp *%rcx\n1: ret\n"                                                        \
            ".size " #name ", . - " #name "\n")
__asm__(".text\n.globl dlopen\n.type dlopen, @function\ndlopen:\n"
        "  push %rdi\n  push %rsi\n  sub $8, %rsp\n"
        "  call hetero_open\n"
        "  add $8, %rsp\n  pop %rsi\n  pop %rdi\n"
        "  and %edx, %esi\n  jmp *%rax\n"
        ".size dlopen, . - dlopen\n");
#elif defined(__aarch64__)
#define ENTRY_POINT(name, versioned)                                                                                   \
    __asm__(".text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n"                                        \
            "  stp x29, x30, [sp, #-48]!\n  mov x29, sp\n"                                                             \
            "  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"                                                           \
            "  mov x3, #" #versioned "\n"                                                                              \
            "  bl hetero_look_up\n"                                                                                    \
            "  mov x16, x1\n  cbz x16, 1f\n"                                                                           \
            "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"                                                           \
            "1: ldp x29, x30, [sp], #48\n  cbz x16, 2f\n  br x16\n2: ret\n"                                            \
            ".size " #name ", . - " #name "\n")
__asm__(".text\n.globl dlopen\n.type dlopen, %function\ndlopen:\n"
        "  stp x29, x30, [sp, #-32]!\n  mov x29, sp\n"
        "  stp x0, x1, [sp, #16]\n"
        "  bl hetero_open\n"
        "  mov x16, x0\n  mov x17, x1\n"
        "  ldp x0, x1, [sp, #16]\n  ldp x29, x30, [sp], #32\n"
        "  and w1, w1, w17\n  br x16\n"
        ".size dlopen, . - dlopen\n");
#endif

ENTRY_POINT(dlsym, 0);
ENTRY_POINT(dlvsym, 1);

/* The driver's function for which the limiter's stands at an address; the address itself otherwise, also while the
 * driver is not loaded. Programs look for the driver's folder so. */
static const void *function_behind(const void *address)
{
    if (!is_of_this_library(address) || FAULT(loader_calls_unanswered))
        return address;
    for (const struct symbols *const *table = __start_hetero_symbols; table < __stop_hetero_symbols; table++) {
        struct library *library = (*table)->library;
        for (size_t row_index = 0; row_index < library->row_count && library != &loader; row_index++)
            if ((*table)->answers[row_index] == address && loaded_handle(library) != NULL) {
                const void *function = symbol_real(library, &library->rows[row_index]);
                return function == NULL ? address : function;
            }
    }
    return address;
}

__attribute__((visibility("default"))) int dladdr(const void *address, Dl_info *info)
{
    return libc_dladdr(function_behind(address), info);
}

__attribute__((visibility("default"))) int dladdr1(const void *address, Dl_info *info, void **extra, int flags)
{
    return libc_dladdr1(function_behind(address), info, extra, flags);
}
