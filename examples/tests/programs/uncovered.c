/* Code that the file's unwind tables leave out, as that of an interpreter made by its own compiler: `main` calls `calls`,
   which calls `uncovered`, whose frame has something else on top. */
asm(".text\n"
    ".type uncovered, @function\n"
    "uncovered:\n"
    "  push %rbp\n"
    "  mov %rsp, %rbp\n"
    "  push $0\n"
    "  mov $600000000, %ecx\n"
    "1: dec %ecx\n"
    "  jnz 1b\n"
    "  leave\n"
    "  ret\n"
    ".size uncovered, . - uncovered\n");

extern int uncovered(void);

__attribute__((noipa, noinline)) int calls(void) { return uncovered() + 1; }

int main(void) { return calls() == 0; }
