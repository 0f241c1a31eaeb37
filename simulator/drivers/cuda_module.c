/* Modules and libraries: the memory that they are charged, and in which contexts. A module is in the context that
 * loaded it. A library is in each context that has used it, or with eager loading at once in the current one. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool eager(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode && !strcmp(mode, "EAGER");
}

CUresult module_enter(struct module *module, struct context *context, struct residence **result)
{
    struct residence *residence = module->residences;
    while (residence && residence->context != context)
        residence = residence->next;
    if (!residence) {
        struct memory *memory = NULL;
        if (module->calls_printf)
            CHECK(limits_need_printf(context));
        if (module->calls_malloc)
            CHECK(limits_need_calls(context));
        if (module->global_bytes)
            CHECK(memory_new(
                &(struct memory){.context = context, .size_bytes = module->global_bytes, .kind = MEMORY_MODULE}, NULL,
                &memory));
        residence = malloc(sizeof *residence);
        *residence = (struct residence){context, memory, module->residences};
        module->residences = residence;
    }
    if (result)
        *result = residence;
    return CUDA_SUCCESS;
}

static void leave(struct residence **link)
{
    struct residence *residence = *link;
    *link = residence->next;
    if (residence->globals)
        memory_free(residence->globals, NULL);
    free(residence);
}

void modules_leave(const struct context *context)
{
    for (struct module *module = NULL; (module = object_next(module, OBJECT_MODULE));)
        for (struct residence **link = &module->residences; *link;)
            if ((*link)->context == context)
                leave(link);
            else
                link = &(*link)->next;
}

static void module_free(struct module *module)
{
    while (module->residences)
        leave(&module->residences);
    for (struct function *function = NULL; (function = object_next(function, OBJECT_FUNCTION));)
        if (function->module == module) {
            free(function->name);
            object_free(function);
        }
    for (unsigned i = 0; i < module->global_count; i++)
        free(module->globals[i].name);
    free(module->globals);
    free(module->ptx);
    object_free(module);
}

/* PTX is text; anything else must be an ELF cubin. */
static CUresult load_one(const void *image, struct context *context, struct module **loaded)
{
    if (!image || !loaded)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    bool binary = magic == 0x464c457fu;
    if (!binary && !strstr(image, ".version"))
        return CUDA_ERROR_INVALID_IMAGE;
    struct module *module = object_new(OBJECT_MODULE);
    image_read(module, image, binary);
    CUresult result = context ? module_enter(module, context, NULL) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        module_free(module);
    else
        *loaded = module;
    return result;
}

/* A library is loaded where there may be no context: its image is chosen for the first device. */
static CUresult load(const void *image, struct context *context, struct module **loaded)
{
    if (!image || !image_is_fat(image))
        return load_one(image, context, loaded);
    char *chosen;
    struct context *image_context = context ? context : current_context();
    CHECK(image_of_fat(image, image_context ? image_context->device : &driver.devices[0], &chosen));
    CUresult result = load_one(chosen, context, loaded);
    free(chosen);
    return result;
}

EXPORT CUresult cuModuleLoadData(CUmodule *handle, const void *image)
{
    LOCKED;
    WITH_CONTEXT(context);
    return load(image, context, (struct module **)handle);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *handle, const void *image, unsigned count, CUjit_option *options,
                                   void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(handle, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *handle, const void *image)
{
    return cuModuleLoadData(handle, image);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *handle, const void *image, CUjit_option *jit, void **jit_values,
                                  unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    LOCKED;
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(image, eager() ? current_context() : NULL, (struct module **)handle);
}

/* The whole file, and a zero behind it. */
static CUresult read_image(const char *path, char **image)
{
    struct stat status;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    size_t size = fstat(fileno(file), &status) ? 0 : (size_t)status.st_size;
    *image = calloc(1, size + 4);
    size = fread(*image, 1, size, file);
    fclose(file);
    if (size)
        return CUDA_SUCCESS;
    free(*image);
    return CUDA_ERROR_INVALID_IMAGE;
}

EXPORT CUresult cuModuleLoad(CUmodule *handle, const char *path)
{
    char *image;
    CHECK(read_image(path, &image));
    CUresult result = cuModuleLoadData(handle, image);
    free(image);
    return result;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *handle, const char *path, CUjit_option *jit, void **jit_values,
                                      unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    char *image;
    CHECK(read_image(path, &image));
    CUresult result = cuLibraryLoadData(handle, image, jit, jit_values, jit_count, options, values, count);
    free(image);
    return result;
}

static CUresult unload(const void *handle)
{
    LOCKED;
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    module_free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule handle)
{
    return unload(handle);
}

EXPORT CUresult cuLibraryUnload(CUlibrary handle)
{
    return unload(handle);
}

static CUresult global_of(CUdeviceptr *pointer, size_t *size, const void *handle, const char *name)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct module *module = object_find(handle, OBJECT_MODULE);
    struct residence *residence;
    if (!name || !module)
        return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    CHECK(module_enter(module, context, &residence));
    for (unsigned i = 0; i < module->global_count; i++) {
        const struct global *global = &module->globals[i];
        if (strcmp(global->name, name) != 0)
            continue;
        if (pointer)
            *pointer = residence->globals ? residence->globals->start + global->offset : 0;
        if (size)
            *size = global->size_bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule handle, const char *name)
{
    return global_of(pointer, size, handle, name);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *size, CUlibrary handle, const char *name)
{
    return global_of(pointer, size, handle, name);
}

/* No image has managed memory here. */
EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *size, CUlibrary handle, const char *name)
{
    LOCKED;
    (void)pointer, (void)size;
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    return object_find(handle, OBJECT_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *result, CUlibrary handle)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    CHECK(module_enter(module, context, NULL));
    *result = (CUmodule)handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    LOCKED;
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* Linking: of PTX alone, which stays text and needs no memory of the card. */

#define LINK_PTX 1 /* CU_JIT_INPUT_PTX of cuda.h's CUjitInputType */

struct link {
    struct object object;
    char *text;
    size_t text_bytes; /* with the zero behind it */
};

EXPORT CUresult cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, void **handle)
{
    LOCKED;
    WITH_CONTEXT(context);
    (void)context, (void)count, (void)options, (void)values;
    NEEDS(handle);
    struct link *link = object_new(OBJECT_LINK);
    link->text = calloc(1, link->text_bytes = 1);
    *handle = link;
    return CUDA_SUCCESS;
}

#define WITH_LINK(name, handle)                                                                                        \
    LOCKED;                                                                                                            \
    struct link *name = object_find(handle, OBJECT_LINK);                                                              \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_HANDLE

EXPORT CUresult cuLinkAddData_v2(void *handle, unsigned type, const void *data, size_t size, const char *name,
                                 unsigned count, CUjit_option *options, void **values)
{
    WITH_LINK(link, handle);
    (void)name, (void)count, (void)options, (void)values;
    if (!data || !size || type != LINK_PTX)
        return data && size ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    size = strnlen(data, size);
    link->text = realloc(link->text, link->text_bytes + size + 1);
    memcpy(link->text + link->text_bytes - 1, data, size);
    link->text_bytes += size + 1;
    memcpy(link->text + link->text_bytes - 2, "\n", 2);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddFile_v2(void *handle, unsigned type, const char *path, unsigned count, CUjit_option *options,
                                 void **values)
{
    char *image;
    CHECK(read_image(path, &image));
    CUresult result = cuLinkAddData_v2(handle, type, image, strlen(image), path, count, options, values);
    free(image);
    return result;
}

EXPORT CUresult cuLinkComplete(void *handle, void **image, size_t *size)
{
    WITH_LINK(link, handle);
    NEEDS(image);
    *image = link->text;
    if (size)
        *size = link->text_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(void *handle)
{
    WITH_LINK(link, handle);
    free(link->text);
    object_free(link);
    return CUDA_SUCCESS;
}
