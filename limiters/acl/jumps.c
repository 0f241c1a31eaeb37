/* Functions whose arguments have no usable source (docs/decisions/native-limiters.md). They are noted, and called with
 * whatever arguments they have: the entry points jump there.
 *
 * A launch so waits for the gate before it is made. It is counted there as made into the default stream, and fenced
 * with the next launch.
 */
#include "reset.h"

#include "types.h"

#include "../hal/book.h"
#include "../shared/calls.h"
#include "../shared/driver.h"
#include "../shared/launch.h"

#include "../core/fault.h"
#include "../core/tenant.h"

static result_t refused(void)
{
    return RESULT_NOT_PERMITTED;
}

static bool note_reset(void)
{
    if (!FAULT(forced_resets_unseen))
        reset_may_come();
    return true;
}

static bool note_retained(void)
{
    book_note_retained();
    return true;
}

static bool pass_gate(void)
{
    struct launch_ticket ticket;
    bool is_permitted = launch_enter(&ticket, STREAM_LEGACY) == RESULT_OK;
    if (is_permitted)
        launch_leave(&ticket, RESULT_OK);
    return is_permitted;
}

/* Where the entry point is to jump. `note`: false refuses the call. */
static void *noted(struct library *library, struct symbol *row, bool (*note)(void), const void *caller)
{
    void *real = symbol_real(library, row);
    bool is_permitted = true;
    if (tenancy() != TENANCY_FREE && !is_nested(caller)) {
        call_begins();
        is_permitted = note();
        call_ends();
    }
    return real == NULL || !is_permitted ? (void *)refused : real;
}

#define NOTED(name, note)                                                                                              \
    __attribute__((used, visibility("hidden"))) void *hetero_note_##name(const void *caller)                           \
    {                                                                                                                  \
        return noted(LIBRARY_OF(ROW_##name), &driver_rows[ROW_##name], note, caller);                                  \
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

NOTED(aclrtResetDeviceForce, note_reset)
NOTED(aclrtMemRetainAllocationHandle, note_retained)
NOTED(aclmdlRIExecute, pass_gate)
NOTED(aclrtLaunchKernelWithArgsArray, pass_gate)
NOTED(aclrtLaunchSIMTKernelWithArgsArray, pass_gate)
NOTED(aclrtLaunchSIMTKernelWithHostArgs, pass_gate)
NOTED(rtCCULaunch, pass_gate)
NOTED(rtFusionLaunch, pass_gate)
NOTED(rtLaunch, pass_gate)
NOTED(rtLaunchKernelWithArgsArray, pass_gate)
