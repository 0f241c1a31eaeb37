/* A simulated libacl_op_compiler.so: an operator is compiled when it is first asked for, and launched through the
 * runtime. */
#include "ascend_acl.h"

#include <stdlib.h>
#include <string.h>

static struct compiled {
    char name[NAME_BYTES_MOST];
    void *function;
    struct compiled *next;
} *operators;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards operators */

static aclError compile(const char *name, struct compiled **compiled)
{
    struct {
        uint32_t magic, version;
        const void *data;
        uint64_t size_bytes;
    } description = {.data = name, .size_bytes = strlen(name)};
    void *binary, *function;
    aclError error = rtRegisterAllKernel(&description, &binary);
    if (!error)
        error = fake_rt_binary_function(binary, name, &function);
    if (error)
        return error;
    *compiled = malloc(sizeof **compiled);
    **compiled = (struct compiled){.function = function, .next = operators};
    strcpy((*compiled)->name, name);
    operators = *compiled;
    return ACL_SUCCESS;
}

EXPORT aclError aclopCompileAndExecute(const char *name, int input_count UNUSED, const void *const *input_shapes UNUSED,
                                       const void *const *inputs UNUSED, int output_count UNUSED,
                                       const void *const *output_shapes UNUSED, void *const *outputs UNUSED,
                                       const void *attributes UNUSED, int engine UNUSED, int flag UNUSED,
                                       const char *path UNUSED, aclrtStream stream)
{
    if (!name)
        return ACL_ERROR_INVALID_PARAM;
    pthread_mutex_lock(&lock);
    struct compiled *compiled = operators;
    while (compiled && strcmp(compiled->name, name))
        compiled = compiled->next;
    aclError error = compiled ? ACL_SUCCESS : compile(name, &compiled);
    pthread_mutex_unlock(&lock);
    return error ? error : rtsLaunchKernelWithDevArgs(compiled->function, 1, stream, NULL, NULL, 0, NULL);
}

/* Options of the compiler, which change nothing here: each is one byte, of a text without letters. */

EXPORT aclError aclSetCompileopt(int option UNUSED, const char *value)
{
    return value ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT size_t aclGetCompileoptSize(int option UNUSED)
{
    return 1;
}

EXPORT aclError aclGetCompileopt(int option UNUSED, char *value, size_t bytes)
{
    if (!value || !bytes)
        return ACL_ERROR_INVALID_PARAM;
    *value = '\0';
    return ACL_SUCCESS;
}
