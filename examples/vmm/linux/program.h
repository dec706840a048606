// What the first programs of a Linux guest share: system calls, a line of output, and the end of the machine.
//
// Freestanding, so that any compiler builds a program into a static file:
//   cc -O1 -static -nostdlib -ffreestanding -fno-stack-protector -fno-pie -no-pie -o init init.c
// A program defines `start`.
#include <asm/unistd.h>
#include <linux/perf_event.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096

// A system call of Linux on x86-64: the number in RAX, arguments in RDI, RSI, RDX, R10, R8 and R9.
static long system_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}
#define CALL(name, a, b, c) system_call(__NR_##name, (long)(a), (long)(b), (long)(c), 0, 0, 0)

// The compiler calls these.
void *memset(void *to, int byte, size_t size) {
    for (volatile char *place = to; size--; place++) *place = (char)byte;
    return to;
}
void *memcpy(void *to, const void *from, size_t size) {
    volatile char *place = to;
    for (const char *source = from; size--;) *place++ = *source++;
    return to;
}

static char line[256];
static size_t length;

static void text(const char *words) {
    while (*words && length < sizeof line) line[length++] = *words++;
}

static void number(uint64_t value) {
    char digits[20];
    size_t count = 0;
    do digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count && length < sizeof line) line[length++] = digits[--count];
}

static void named(const char *name, uint64_t value) {
    text(name);
    number(value);
}

static void print(void) {
    text("\n");
    for (size_t done = 0; done < length;) {
        long written = CALL(write, 1, line + done, length - done);
        if (written <= 0) break;
        done += (size_t)written;
    }
    length = 0;
}

// Ends the machine by isa-debug-exit: the monitor's status is (value << 1) | 1. Where a program may not write to
// ports, by a reset.
static void end(unsigned char value) {
    if (CALL(iopl, 3, 0, 0) == 0) __asm__ volatile("outb %0, $0xF4" : : "a"(value));
    system_call(__NR_reboot, 0xfee1dead, 672274793, 0x1234567, 0, 0, 0);
    for (;;) CALL(pause, 0, 0, 0);
}

static void fail(const char *why, long error) {
    text("failed ");
    text(why);
    if (error < 0) named(": error ", (uint64_t)-error);
    print();
    // What the terminal has yet to send.
    CALL(ioctl, 1, 0x5409 /* TCSBRK */, 1);
    end(0x11);
}

static long check(const char *what, long result) {
    if (result < 0) fail(what, result);
    return result;
}

static uint64_t now(void) {
    struct {
        int64_t seconds, nanoseconds;
    } time = {0, 0};
    check("clock_gettime", CALL(clock_gettime, 1 /* monotonic */, &time, 0));
    return (uint64_t)time.seconds * 1000000000 + (uint64_t)time.nanoseconds;
}

static void turn(unsigned times) {
    for (unsigned count = 0; count < times * 100000; count++) __asm__ volatile("" : : : "memory");
}

// Returns the NMIs of a processor: a column of a line of /proc/interrupts.
static uint64_t nmis(unsigned processor) {
    static char file[8192];
    long descriptor = check("/proc/interrupts", CALL(open, "/proc/interrupts", 0, 0));
    size_t size = 0;
    for (long got; size < sizeof file - 1; size += (size_t)got) {
        got = check("read", CALL(read, descriptor, file + size, sizeof file - 1 - size));
        if (got == 0) break;
    }
    CALL(close, descriptor, 0, 0);
    file[size] = 0;
    for (const char *place = file; *place; place++) {
        if (place[0] != 'N' || place[1] != 'M' || place[2] != 'I' || place[3] != ':') continue;
        place += 4;
        for (uint64_t count = 0;; processor--, count = 0) {
            while (*place == ' ') place++;
            if (*place < '0' || *place > '9') break;
            while (*place >= '0' && *place <= '9') count = count * 10 + (uint64_t)(*place++ - '0');
            if (processor == 0) return count;
        }
    }
    fail("no NMIs in /proc/interrupts", 0);
    return 0;
}

// Reads the number in a file; -1: there is no such file.
static long number_in(const char *path) {
    char digits[16];
    long descriptor = CALL(open, path, 0, 0), value = 0;
    if (descriptor < 0) return -1;
    long size = check("read of a number", CALL(read, descriptor, digits, sizeof digits));
    for (long place = 0; place < size && digits[place] >= '0'; place++) value = value * 10 + (digits[place] - '0');
    CALL(close, descriptor, 0, 0);
    return value;
}

#define UNITS "/sys/bus/event_source/devices/"

// Mounts /proc and /sys.
static void mount_all(void) {
    check("mount of /proc", system_call(__NR_mount, (long)"proc", (long)"/proc", (long)"proc", 0, 0, 0));
    CALL(mkdir, "/sys", 0555, 0); // Unless the RAM disk has it.
    check("mount of /sys", system_call(__NR_mount, (long)"sysfs", (long)"/sys", (long)"sysfs", 0, 0, 0));
}

static void end_good(void) {
    text("end good");
    print();
    // What the terminal has yet to send.
    CALL(ioctl, 1, 0x5409 /* TCSBRK */, 1);
    end(0x10);
}

__attribute__((used)) static void start(void);
__asm__(".globl _start\n"
        "_start: xor %ebp, %ebp\n"
        "and $-16, %rsp\n"
        "call start\n");
