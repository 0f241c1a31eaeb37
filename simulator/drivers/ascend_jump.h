/* A name of libacl_rt: a jump to the function of libruntime that has Impl at its end. */
#if defined __x86_64__
#define JUMP_TO "jmp " /* through the PLT */
#elif defined __aarch64__
#define JUMP_TO "b "
#else
#error "no jump is known for this processor"
#endif
#define JUMP(name)                                                                                                     \
    __asm__(".text\n.globl " #name "\n.type " #name ", %function\n" #name ": " JUMP_TO #name "Impl" JUMP_END "\n");
#ifdef __x86_64__
#define JUMP_END "@PLT"
#else
#define JUMP_END ""
#endif
