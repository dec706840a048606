/* A program whose callers are known: `main` calls `outer` and `interrupted`, `outer` calls `middle`, `middle` calls `leaf`
   and itself, a signal interrupts `interrupted`, whose handler calls `in_handler`, and nothing where it interrupts other
   functions; `asks` calls the kernel's vdso. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#define OWN __attribute__((noipa, noinline))

static volatile uint64_t sink = 1;
static volatile int inside, handled;

OWN uint64_t leaf(uint64_t value) {
    for (int i = 0; i < 20000; i++) value = (value ^ (value >> 7)) * 0x9E3779B97F4A7C15u;
    return value;
}

OWN uint64_t middle(uint64_t value, int depth) {
    if (depth) return middle(value, depth - 1) + 1;
    return leaf(value) + 1;
}

OWN uint64_t outer(uint64_t value) { return middle(value, 10) + 1; }

OWN void in_handler(void) {
    for (int i = 0; i < 400000; i++) sink = sink * 3 + 1;
}

OWN void handler(int signal) {
    if (inside) in_handler();
    handled++;
    sink += signal;
}

OWN void interrupted(void) {
    inside = 1;
    /* On a busy machine few signals come: until there were enough for samples of the handler. */
    for (long i = 0; i < 150000000 || handled < 200; i++) sink += i;
    inside = 0;
}

OWN long asks(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_nsec + 1;
}

int main(void) {
    uint64_t sum = 1;
    for (int i = 0; i < 10000; i++) sum += outer(sum);
    for (int i = 0; i < 5000000; i++) sum += asks();
    struct itimerval timer = {{0, 5000}, {0, 5000}};
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &timer, 0);
    interrupted();
    printf("%lu\n", (unsigned long)(sum + sink));
}
