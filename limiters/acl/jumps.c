/* Functions whose arguments have no usable source (docs/decisions/native-limiters.md), and that undo what the limiter
 * knows. They are noted, and called with whatever arguments they have: the entry points jump there. */
#include "reset.h"

#include "../hal/book.h"
#include "types.h"
#include "../shared/calls.h"
#include "../shared/driver.h"

#include "../core/fault.h"
#include "../core/tenant.h"

static result_t no_function(void)
{
    return RESULT_NO_FUNCTION;
}

static void *noted(struct symbol *row, void (*note)(void), const void *caller)
{
    void *real = symbol_real(&driver_library, row);
    bool is_unseen = FAULT(forced_resets_unseen) && note == reset_may_come;
    if (tenancy() != TENANCY_FREE && !is_nested(caller) && !is_unseen) {
        call_begins();
        note();
        call_ends();
    }
    return real == NULL ? (void *)no_function : real;
}

#define NOTED(name, note)                                                                                              \
    __attribute__((used, visibility("hidden"))) void *hetero_note_##name(const void *caller)                           \
    {                                                                                                                  \
        return noted(&driver_rows[ROW_##name], note, caller);                                                          \
    }                                                                                                                  \
    JUMP(name)

#if defined(__x86_64__)
#define JUMP(name)                                                                                                     \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                                        \
            "  mov (%rsp), %rax\n"                                                                                     \
            "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n  sub $8, %rsp\n"             \
            "  mov %rax, %rdi\n  call hetero_note_" #name "\n"                                                         \
            "  add $8, %rsp\n  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"                   \
            "  jmp *%rax\n"                                                                                            \
            ".size " #name ", . - " #name "\n");
#elif defined(__aarch64__)
#define JUMP(name)                                                                                                     \
    __asm__(".text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n"                                        \
            "  stp x29, x30, [sp, #-80]!\n  mov x29, sp\n"                                                             \
            "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n  stp x4, x5, [sp, #48]\n  stp x6, x7, [sp, #64]\n"     \
            "  mov x0, x30\n  bl hetero_note_" #name "\n"                                                              \
            "  mov x16, x0\n"                                                                                          \
            "  ldp x0, x1, [sp, #16]\n  ldp x2, x3, [sp, #32]\n  ldp x4, x5, [sp, #48]\n  ldp x6, x7, [sp, #64]\n"     \
            "  ldp x29, x30, [sp], #80\n  br x16\n"                                                                    \
            ".size " #name ", . - " #name "\n");
#endif

NOTED(aclrtResetDeviceForce, reset_may_come)
NOTED(aclrtMemRetainAllocationHandle, book_note_retained)
