/* dlsym, dlvsym and dlopen as this process sees them, and the real ones for ourselves.
 *
 * Ours answer a name of ours with our function when the handle has that symbol, and jump to the real function for
 * everything else: a jump, because the real one looks at its return address to know who asks (RTLD_NEXT, run paths).
 */
#include "symbols.h"

#include "libc.h"
#include "tenant.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

/* ------------------------------------------------------------------------------------------------------- our tables */

/* What the linker puts around this library and around the section of its tables (SYMBOLS). */
#define HIDDEN __attribute__((visibility("hidden")))
extern const char __ehdr_start[] HIDDEN, _end[] HIDDEN;
extern const struct symbols *const __start_hetero_symbols[] HIDDEN;
extern const struct symbols *const __stop_hetero_symbols[] HIDDEN;

static bool is_of_this_library(const void *function)
{
    return (uintptr_t)function >= (uintptr_t)__ehdr_start && (uintptr_t)function < (uintptr_t)_end;
}

/* What a program has under this name that was linked to it, were we not there. */
static void *after_us(const char *name)
{
    void *found = libc_dlsym(RTLD_NEXT, name);
    return is_of_this_library(found) ? NULL : found;
}

/* The first of its names that can be opened so. */
static void *opened(const struct library *library, int flags)
{
    void *handle = NULL;
    for (unsigned i = 0; i < LIBRARY_NAMES && library->names[i] != NULL && handle == NULL; i++)
        handle = libc_dlopen(library->names[i], flags);
    return handle;
}

static void *loaded(const struct library *library)
{
    return opened(library, RTLD_LAZY | RTLD_NOLOAD);
}

static bool is_called(const struct link_map *object, const struct library *library)
{
    bool is = false;
    for (unsigned i = 0; i < LIBRARY_NAMES && library->names[i] != NULL; i++)
        is = is || object_is_called(object, library->names[i]);
    return is;
}

bool library_calls(const struct library *library, const void *caller)
{
    const struct link_map *object = is_of_this_library(caller) ? NULL : object_of(caller);
    return is_of_this_library(caller) || (object != NULL && is_called(object, library));
}

void library_resolve(struct library *library)
{
    if (atomic_load_explicit(&library->resolved, memory_order_acquire))
        return;
    /* No lock of ours around the loader's: a second thread finds the same. The handle is kept for good. */
    void *handle = loaded(library);
    if (handle == NULL)
        handle = opened(library, RTLD_LAZY);
    if (handle == NULL || FAULT(symbols_resolved_late))
        return;
    for (struct symbol *row = library->rows; row < library->rows + library->count; row++) {
        void *real = libc_dlsym(handle, row->name);
        if (is_of_this_library(real))
            real = NULL; /* the name is ours alone: never call ourselves */
        atomic_store_explicit(&row->real, real, memory_order_release);
    }
    atomic_store_explicit(&library->resolved, true, memory_order_release);
}

void *library_named(const struct library *library, const char *name)
{
    void *handle = loaded(library), *found = handle == NULL ? NULL : libc_dlsym(handle, name);
    return is_of_this_library(found) ? NULL : found;
}

/* Whether it is the driver's, or a copy's of the driver under another file name; and not of a library that has
 * functions of the driver's names. */
static bool is_the_drivers(struct library *library, const void *found)
{
    const struct link_map *object = object_of(found);
    if (object == NULL || is_called(object, library))
        return object != NULL;
    return loaded(library) != NULL && object == object_of(symbol_real(library, library->rows));
}

/* What an object has under a name, itself or by what it was linked to; the program itself has no file name. */
static void *linked(const struct link_map *object, const char *name)
{
    void *handle = libc_dlopen(*object->l_name == '\0' ? NULL : object->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle == NULL ? NULL : libc_dlsym(handle, name);
    if (handle != NULL)
        dlclose(handle);
    return is_of_this_library(found) ? NULL : found;
}

/* The same of whatever is loaded. */
static void *linked_anywhere(const char *name)
{
    void *found = NULL;
    const struct link_map *object = object_of(__ehdr_start);
    while (object->l_prev != NULL)
        object = object->l_prev;
    for (; object != NULL && found == NULL; object = object->l_next)
        found = linked(object, name);
    return found;
}

void *symbol_anothers(struct library *library, struct symbol *row, const void *caller)
{
    const struct link_map *object = object_of(caller);
    void *found = object == NULL ? NULL : linked(object, row->name);
    if (found == NULL)
        found = after_us(row->name);
    /* A caller that jumped here left no address. Where the driver's library is not there, only another can be meant. */
    if (found == NULL && loaded(library) == NULL)
        found = linked_anywhere(row->name);
    return found == NULL || is_the_drivers(library, found) ? NULL : found;
}

/* The library, the row and our answer of a name that we answer. */
struct place {
    struct library *library;
    struct symbol *row;
    void *ours;
};

static bool find_ours(const char *name, struct place *place)
{
    for (const struct symbols *const *at = __start_hetero_symbols; at < __stop_hetero_symbols; at++) {
        struct library *library = (*at)->library;
        for (size_t row = 0; row < library->count; row++)
            if ((*at)->ours[row] != NULL && same_text(library->rows[row].name, name)) {
                *place = (struct place){library, &library->rows[row], (*at)->ours[row]};
                return true;
            }
    }
    return false;
}

/* Whether the whole program is looked through, rather than one object and what it was linked to. */
static bool is_everywhere(const void *handle)
{
    return handle == RTLD_NEXT || handle == RTLD_DEFAULT;
}

/* Whether this handle leads to a driver's function that no table has and that is not to be had. Then dlerror says so:
 * programs count on it to say something. */
static bool hidden(void *handle, const char *name)
{
    for (const struct symbols *const *at = __start_hetero_symbols; name != NULL && at < __stop_hetero_symbols; at++) {
        struct library *library = (*at)->library;
        if (library->hides == NULL || name[0] != library->rows[0].name[0] || name[1] != library->rows[0].name[1] ||
            is_everywhere(handle) || tenancy() == TENANCY_FREE)
            continue;
        const struct link_map *object = object_of(libc_dlsym(handle, name));
        if (object == NULL || !is_called(object, library) || !library->hides(name))
            continue;
        char text[160];
        snprintf(text, sizeof text, "%s, which the limiter does not know", name);
        libc_dlsym(handle, text);
        return true;
    }
    return false;
}

/* --------------------------------------------------------------------------------------------- the loader's functions
 */

/* libc's dlsym is a way past us like any driver's function. */
enum { ROW_dlsym, ROW_dlvsym, ROW_dlopen, ROWS };

static struct symbol loader_rows[ROWS] = {
    [ROW_dlsym] = {"dlsym", (void *)libc_dlsym},
    [ROW_dlvsym] = {"dlvsym", (void *)libc_dlvsym},
    [ROW_dlopen] = {"dlopen", (void *)libc_dlopen},
};
static void *const loader_ours[ROWS] = {(void *)dlsym, (void *)dlvsym, (void *)dlopen};

static struct library loader = {.names = {"libc.so.6"}, .rows = loader_rows, .count = ROWS, .resolved = true};
SYMBOLS(loader, &loader, loader_ours);

/* ------------------------------------------------------------------------------------------------- the entry points */

/* What the stubs below do next: return `answer`, or jump to `pass` with the caller's arguments and return address. */
struct lookup {
    void *answer;
    void *pass;
};

/* Our functions are found wherever the whole program is looked through; the caller wants to know whether the driver is
 * loaded. */
static void *found_everywhere(const struct place *place, bool next)
{
    bool there = loaded(place->library) != NULL && symbol_real(place->library, place->row) != NULL;
    /* After a library in front of the driver comes the driver, and not that library again. */
    void *found = there && next ? NULL : after_us(place->row->name);
    return found == NULL && there ? place->ours : found;
}

/* What a handle has under a name of ours: our function, where the loader would find it or the driver's. */
static void *found_by(void *handle, const struct place *place, const char *version, bool versioned)
{
    const char *name = place->row->name;
    void *found = place->ours;
    if (!is_everywhere(handle))
        found = versioned ? libc_dlvsym(handle, name, version) : libc_dlsym(handle, name);
    if (is_of_this_library(found))
        found = found_everywhere(place, handle == RTLD_NEXT);
    return is_the_drivers(place->library, found) ? place->ours : found;
}

__attribute__((used, visibility("hidden"))) struct lookup hetero_look_up(void *handle, const char *name,
                                                                         const char *version, long versioned)
{
    void *pass = versioned ? (void *)libc_dlvsym : (void *)libc_dlsym;
    struct place place;
    if (name == NULL || !find_ours(name, &place) || (FAULT(loader_calls_unanswered) && place.library == &loader))
        return (struct lookup){NULL, hidden(handle, name) ? NULL : pass};
    /* A sanitizer asks for these before anything of it works: nothing is called but what passes such a call on. */
    bool early = place.library == &loader && is_everywhere(handle);
    if (early && atomic_load(&process.tenancy) != TENANCY_FREE)
        return (struct lookup){place.ours, NULL};
    if (early || tenancy() == TENANCY_FREE)
        return (struct lookup){NULL, pass};
    return (struct lookup){found_by(handle, &place, version, versioned), NULL};
}

/* What dlopen's stub does next: jump to `pass`, with the caller's flags but for those not in `flags`. */
struct opening {
    void *pass;
    long flags;
};

/* A library that looks for names in itself and what it was linked to before everything else would find the driver's. */
__attribute__((used, visibility("hidden"))) struct opening hetero_open(const char *file, int flags)
{
    (void)file;
    bool past_us = (flags & RTLD_DEEPBIND) != 0 && tenancy() != TENANCY_FREE;
    return (struct opening){(void *)libc_dlopen, past_us ? ~(long)RTLD_DEEPBIND : -1L};
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
